"""The pages of savepoints: all of a pipeline's, one with its contents, and two compared.

The contents are the manifest, the operators and the rows of a state. A savepoint never changes, so
these pages are not live. Everyone may look; it takes the admin role to have every byte of one read
again, and to request a comparison.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from ftdash.checkpoints.answers import Savepoint, SavepointPage
from ftdash.checkpoints.queries import savepoints as savepoint_queries
from ftdash.checkpoints.queries.savepoints import Looked, manifest_bytes
from ftdash.jobs.answers import ActionOffer, PipelinePage
from ftdash.jobs.validation import check_place
from ftdash.points.services import comparisons
from ftdash.points.services import restore as point_services
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.events import shared
from ftdash.ui.pipelines.page import data_at, number_or_none
from pipelines.domain.commands import RestorePipeline, TakeSavepoint
from pipelines.domain.errors import Rejected

PER_PAGE = 25


@dataclass(frozen=True, slots=True)
class SavepointsView:
    page: PipelinePage
    data_at: datetime | None
    found: SavepointPage

    @property
    def can_restore(self) -> bool:
        return self.page.actions[RestorePipeline.kind].is_possible

    @property
    def take(self) -> ActionOffer:
        return self.page.actions[TakeSavepoint.kind]


@dataclass(frozen=True, slots=True)
class SavepointView:
    page: PipelinePage
    data_at: datetime | None
    point: Savepoint
    others: list[str]  # pipelines on which it may be tried too

    @property
    def restore(self) -> ActionOffer:
        return self.page.actions[RestorePipeline.kind]


@require_GET
@never_cache
def savepoints(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "savepoints/page.html", {"view": savepoints_view(request, name)})


@require_GET
@never_cache
@shared
def savepoints_regions(request: HttpRequest, name: str) -> HttpResponse:
    context = {"view": savepoints_view(request, name), "is_refresh": True}
    return render(request, "savepoints/regions.html", context)


@require_GET
@never_cache
def savepoint(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    return render(request, "savepoints/one/page.html", {"view": savepoint_view(savepoint_key)})


@require_GET
@never_cache
def savepoint_regions(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    context = {"view": savepoint_view(savepoint_key), "is_refresh": True}
    return render(request, "savepoints/one/regions.html", context)


@require_GET
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def restore_into(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    """Redirects to the restore of the chosen pipeline, with its preflight."""
    point = existing(savepoint_key)
    chosen = request.GET.get("into", "")
    if queries.pipeline_page(chosen) is None:
        raise Http404(f"There is no pipeline named {chosen}.")
    address = reverse("act", args=[chosen, "restore"])
    return redirect(f"{address}?{urlencode({'path': point.path})}")


@require_POST
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def verify(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    """Has every byte of the savepoint read again."""
    point = existing(savepoint_key)
    try:
        point_services.begin_inspection(point.path)
    except Rejected as refusal:
        messages.error(request, str(refusal))
    return redirect("savepoint", savepoint_key)


@require_GET
@never_cache
def verification(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    """The progress of a verification; asking also wakes a reading that stopped halfway."""
    point_services.inspection_of(existing(savepoint_key).path)
    return render(request, "savepoints/one/verification.html", {"point": existing(savepoint_key)})


def savepoints_view(request: HttpRequest, name: str) -> SavepointsView:
    """Raises Http404 if the pipeline does not exist."""
    page = queries.pipeline_page(name)
    if page is None:
        raise Http404(f"There is no pipeline named {name}.")
    wanted = number_or_none(request.GET.get("page")) or 1
    found = savepoint_queries.savepoints(name, wanted, PER_PAGE)
    return SavepointsView(page, data_at(page), found)


def savepoint_view(savepoint_key: str) -> SavepointView:
    """Raises Http404 if the savepoint does not exist."""
    point = existing(savepoint_key)
    page = queries.pipeline_page(point.pipeline)
    if page is None:
        raise Http404(f"There is no pipeline named {point.pipeline}.")
    names = [pipeline.name for pipeline, _ in queries.newest_runs()]
    others = [name for name in names if name != point.pipeline]
    return SavepointView(page, data_at(page), point, others)


def existing(savepoint_key: str) -> Savepoint:
    point = savepoint_queries.savepoint(savepoint_key)
    if point is None:
        raise Http404(f"There is no savepoint {savepoint_key}.")
    return point


PART_SHELF_LIFE = "savepoints/one/shelf_life.html"


class FilterForm(forms.Form):
    """Which rows to show; the address has the state."""

    uid = forms.CharField(widget=forms.HiddenInput())
    state = forms.CharField(widget=forms.HiddenInput())
    column = forms.ChoiceField(label="Column")
    value = forms.CharField(
        label="is",
        required=False,
        help_text="Written like the column's type. Empty: all rows.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )


@require_GET
@never_cache
def manifest(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    point = existing(savepoint_key)
    try:
        check_place(point.path)
        content = manifest_bytes(point.path)
    except Rejected as refusal:
        messages.error(request, str(refusal))
        return redirect("savepoint", savepoint_key)
    response = HttpResponse(content, content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="{point.key}-manifest.json"'
    return response


@require_GET
@never_cache
def shelf_life(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    """A part of the savepoint's page, which does not wait for the sources' answers."""
    point = existing(savepoint_key)
    context: dict[str, object] = {"point": point, "now": timezone.now()}
    try:
        found = savepoint_queries.shelf_life_of(point)
    except Rejected as refusal:
        return render(request, PART_SHELF_LIFE, {**context, "refusal": str(refusal)})
    limits = [(datetime.fromtimestamp(each.until_ms / 1000, UTC), each) for each in found.limits]
    return render(request, PART_SHELF_LIFE, {**context, "found": found, "limits": limits})


@require_GET
@never_cache
def operators(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    """A part of the savepoint's page, which does not wait for it; or a separate page."""
    context: dict[str, object] = {"point": existing(savepoint_key)}
    try:
        context["operators"] = savepoint_queries.operators_in(existing(savepoint_key).path)
    except Rejected as refusal:
        context["refusal"] = str(refusal)
    is_part = request.htmx  # type: ignore[attr-defined]
    template = "savepoints/state/operators.html" if is_part else "savepoints/state/holds.html"
    return render(request, template, context)


@require_GET
@never_cache
def rows(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    looked = _looked(request.GET)
    context: dict[str, object] = {"point": existing(savepoint_key), "looked": looked}
    try:
        found = savepoint_queries.rows_in(existing(savepoint_key).path, looked)
    except Rejected as refusal:
        return render(request, "savepoints/state/page.html", {**context, "refusal": str(refusal)})
    form = FilterForm(initial=request.GET.dict())
    form.fields["column"].choices = [  # type: ignore[attr-defined]
        (each.name, f"{each.name} ({each.type})") for each in found.columns
    ]
    return render(request, "savepoints/state/page.html", {**context, "found": found, "form": form})


def _looked(query: QueryDict) -> Looked:
    return Looked(
        uid=query.get("uid", ""),
        state=query.get("state", ""),
        column=query.get("column", ""),
        value=query.get("value", ""),
        part=number_or_none(query.get("part")) or 0,
        row=number_or_none(query.get("row")) or 0,
    )


CHOICES_MAX = 200


@require_GET
@never_cache
def compare(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    """Compares the savepoint in `from` with this one."""
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
    """Returns the savepoints that were compared with `right` before, newest first."""
    by_path = {each.path: each for each in known}
    return [by_path[path] for path in comparisons.compared_with(right.path) if path in by_path]


def _context(request: HttpRequest, savepoint_key: str) -> dict[str, object]:
    right, chosen = existing(savepoint_key), request.GET.get("from", "")
    left = existing(chosen) if chosen else None
    found = comparisons.comparison_of(left.path, right.path) if left else None
    return {"point": right, "left": left, "found": found}
