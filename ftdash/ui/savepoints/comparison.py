"""The differences between two savepoints: request, progress of the worker, and result.

Everyone may see the results; asking for a comparison takes the admin role.
"""

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from ftdash.checkpoints.queries import savepoints as savepoint_queries
from ftdash.checkpoints.savepoint_answers import Savepoint
from ftdash.points.services import comparisons
from ftdash.ui.savepoints.page import existing
from pipelines.domain.errors import Rejected

CHOICES_MAX = 200


@require_GET
@never_cache
def compare(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    """From the savepoint in `from` to this one."""
    right = existing(savepoint_key)
    found = savepoint_queries.savepoints(right.pipeline, 1, CHOICES_MAX)
    others = [each for each in found.rows if each.key != savepoint_key and not each.is_disposed]
    return render(
        request,
        "savepoints/compare/page.html",
        {
            **_context(request, savepoint_key),
            "others": others,
            "compared": _compared(right, found.rows),
        },
    )


@require_GET
@never_cache
def progress(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    return render(request, "savepoints/compare/outcome.html", _context(request, savepoint_key))


@require_POST
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def start_comparison(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    left, right = existing(request.POST.get("from", "")), existing(savepoint_key)
    try:
        comparisons.ask(left.path, right.path, request.user.get_username())
    except Rejected as refusal:
        messages.error(request, str(refusal))
    return redirect(
        f"{reverse('compare-savepoints', args=[right.key])}?{urlencode({'from': left.key})}"
    )


def _compared(right: Savepoint, known: list[Savepoint]) -> list[Savepoint]:
    """The savepoints with an existing comparison with it, newest first."""
    by_path = {each.path: each for each in known}
    return [by_path[path] for path in comparisons.compared_with(right.path) if path in by_path]


def _context(request: HttpRequest, savepoint_key: str) -> dict[str, object]:
    right, chosen = existing(savepoint_key), request.GET.get("from", "")
    left = existing(chosen) if chosen else None
    found = comparisons.comparison_of(left.path, right.path) if left else None
    return {"point": right, "left": left, "found": found}
