"""The address that Prometheus scrapes."""

from django.urls import path

from ftdash.prometheus import views

app_name = "prometheus"

urlpatterns = [path("metrics", views.metrics, name="metrics")]
