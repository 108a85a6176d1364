"""All addresses of the dashboard. Whitenoise serves static files before these."""

from django.urls import URLPattern, URLResolver, include, path

from ftdash.api.flink import urls as flink
from ftdash.documentation.site import documentation
from ftdash.ui.admin_site import rows

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("ftdash.prometheus.views")),
    path("", include("ftdash.deployment.health")),
    path("", include("ftdash.ui.urls")),
    path("admin/", rows.urls),
    path("docs/", documentation, name="documentation"),
    path("docs/<path:path>", documentation, name="documentation-page"),
    path("api/", include("ftdash.api.own.urls")),
    path("v1/", include((flink.versioned, flink.app_name), namespace="flink-v1")),
    path("flink/", include((flink.beside_page, flink.app_name), namespace="flink-web")),
    path("", include((flink.urlpatterns, flink.app_name))),
]

handler500 = "ftdash.ui.out_of_order.server_error"
