"""The pages. Each is rendered whole, and also as regions that an open tab replaces.

All regions of one refresh come from one read, so that the numbers on a page belong together.
Decides nothing: the queries supply what is shown.
"""

from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.alerts import queries as alert_queries
from ftdash.runs.queries import pipelines as queries
from ftdash.ui import events, sentences
from ftdash.ui.pipelines.view import Address, pipeline_view
from ftdash.ui.shared_regions import shared


@require_GET
@never_cache
def fleet(request: HttpRequest) -> HttpResponse:
    return render(request, "fleet/page.html", fleet_context())


@require_GET
@never_cache
@shared
def fleet_regions(request: HttpRequest) -> HttpResponse:
    return render(request, "fleet/regions.html", fleet_context() | {"is_refresh": True})


def fleet_context() -> dict[str, object]:
    shown = queries.fleet()
    firing = alert_queries.firing()
    return {"fleet": shown, "sentence": sentences.fleet(shown), "firing": firing}


# Plotly fills style elements and sets style attributes, and accepts no nonce.
@csp_update({"style-src": [SELF, UNSAFE_INLINE]})  # type: ignore[untyped-decorator]
@require_GET
@never_cache
def pipeline(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "pipelines/page.html", pipeline_context(request, name))


@require_GET
@never_cache
@shared
def pipeline_regions(request: HttpRequest, name: str) -> HttpResponse:
    context = pipeline_context(request, name) | {"is_refresh": True}
    return render(request, "pipelines/regions.html", context)


def pipeline_context(request: HttpRequest, name: str) -> dict[str, object]:
    view = pipeline_view(name, Address.parse(request.GET))
    return {"view": view, "firing": alert_queries.firing(name)}


@require_GET
@never_cache
async def event_stream(request: HttpRequest) -> StreamingHttpResponse:
    board = events.board_of_this_loop(queries.versions)
    response = StreamingHttpResponse(
        events.messages(board), content_type="text/event-stream; charset=utf-8"
    )
    response["X-Accel-Buffering"] = "no"  # a buffering proxy would hold the messages back
    return response
