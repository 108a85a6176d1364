"""The page that is shown when no other can be made, above all while the database is away.

Reads nothing: neither the database nor the session, which is stored there.
"""

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

RETRY_AFTER_S = 5


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler of status 500; called while the exception is handled."""
    del request
    is_database = isinstance(sys.exc_info()[1], (OperationalError, InterfaceError))
    page = render_to_string("out_of_order.html", {"is_database": is_database})
    response = HttpResponse(page, status=503 if is_database else 500)
    if is_database:
        response["Retry-After"] = str(RETRY_AFTER_S)
    return response
