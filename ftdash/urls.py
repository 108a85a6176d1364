"""All addresses of the dashboard, and the page that it shows when it can make no other.

Whitenoise serves static files before Django looks at these addresses.
"""

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import URLPattern, URLResolver, include, path

from ftdash.api.flink import urls as flink
from ftdash.documentation.site import documentation
from ftdash.ui.admin_site import rows

RETRY_AFTER_S = 5

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


def handler500(request: HttpRequest) -> HttpResponse:
    """Django's handler of status 500.

    Django calls it while it handles the exception, above all while the database is away. So it
    reads neither the database nor the session, which is stored there.
    """
    del request
    is_database = isinstance(sys.exc_info()[1], (OperationalError, InterfaceError))
    page = render_to_string("out_of_order.html", {"is_database": is_database})
    response = HttpResponse(page, status=503 if is_database else 500)
    if is_database:
        response["Retry-After"] = str(RETRY_AFTER_S)
    return response
