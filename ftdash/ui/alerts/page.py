"""The page of alerts: those that fire now, silences, and those that fired before.

A short module of its own, because each page has a folder, named like that of its templates.
"""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.alerts import queries
from ftdash.runs.queries import pipelines as job_queries
from ftdash.ui.pipelines.page import number_or_none

PER_PAGE = 25


@require_GET
@never_cache
def alerts(request: HttpRequest) -> HttpResponse:
    return render(request, "alerts/page.html", _context(request))


@require_GET
@never_cache
def alerts_regions(request: HttpRequest) -> HttpResponse:
    return render(request, "alerts/regions.html", _context(request) | {"is_refresh": True})


def _context(request: HttpRequest) -> dict[str, object]:
    page = number_or_none(request.GET.get("page")) or 1
    return {
        "seen": job_queries.observe(),
        "firing": queries.firing(),
        "silences": queries.silences(),
        "history": queries.history(page, PER_PAGE),
        "rule_count": sum(rule.is_on for rule in queries.rules()),
    }
