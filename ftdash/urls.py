"""All addresses of the dashboard. Static files are served in front of these by whitenoise."""

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [path("", include("ftdash.ui.urls"))]

handler500 = "ftdash.ui.out_of_order.server_error"
