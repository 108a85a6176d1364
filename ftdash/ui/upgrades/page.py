"""The page of one upgrade: who asked for it and why, and each step with its time and outcome.

A short module of its own, because each page has a folder, named like that of its templates.
"""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.runs.queries import pipelines as job_queries
from ftdash.upgrades.queries import upgrade_view


@require_GET
@never_cache
def upgrade(request: HttpRequest, name: str, request_id: str) -> HttpResponse:
    return render(request, "upgrades/page.html", _context(name, request_id))


@require_GET
@never_cache
def upgrade_regions(request: HttpRequest, name: str, request_id: str) -> HttpResponse:
    context = _context(name, request_id) | {"is_refresh": True}
    return render(request, "upgrades/regions.html", context)


def _context(name: str, request_id: str) -> dict[str, object]:
    """Raises Http404 if the pipeline has no such upgrade."""
    view = upgrade_view(name, request_id)
    if view is None:
        raise Http404(f"{name} has no upgrade {request_id}.")
    return {"view": view, "seen": job_queries.observe()}
