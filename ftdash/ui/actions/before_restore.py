"""What a page shows before a restore: if it would work, and how far the point has been read.

It shows at once everything that is known at once. A worker reads the files; the page polls its
progress until it ends.
"""

from dataclasses import dataclass

from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.checkpoints.answers import Reading
from ftdash.jobs.answers import PipelinePage
from ftdash.points.queries.lineage import rows_after
from ftdash.points.services import restore as point_services
from ftdash.points.services.restore import Restore
from ftdash.requests.asking import pipeline_named
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.actions.start_forms import RestoreForm
from pipelines.domain.errors import Rejected
from pipelines.points.verdict import Check, Verdict


@dataclass(frozen=True, slots=True)
class LookedAt:
    """`refusal`: why nothing could be checked."""

    path: str
    verdict: Verdict | None = None
    refusal: str = ""
    inspection: Reading | None = None
    not_read: str = ""  # why its files are not read beforehand
    rows_set_aside: int | None = None  # None: not known

    @property
    def is_possible(self) -> bool:
        found = self.inspection.problem if self.inspection else ""
        return self.verdict is not None and self.verdict.is_possible and not found

    @property
    def not_known(self) -> str:
        """What a person would expect among the findings, and why it is missing."""
        if self.verdict is None:
            return ""
        if self.verdict.found(Check.PIPELINE):
            return "State, files and sources were not checked, because of this:"
        if not self.verdict.is_possible:
            return ""
        if self.verdict.records_to_replay is None:
            return "How much would be read again is not known: it has completed no checkpoint."
        if self.verdict.estimated_ms is None:
            return "How long it takes is not known before a recovery of this pipeline was measured."
        return ""


@require_GET
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def verdict(request: HttpRequest, name: str) -> HttpResponse:
    page = queries.pipeline_page(name)
    if page is None:
        raise Http404("There is no such pipeline.")
    found = looked_at(page, RestoreForm(initial=request.GET.dict(), page=page))
    return render(request, "actions/findings.html", {"page": page, "verdict": found})


@require_GET
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def reading(request: HttpRequest, name: str) -> HttpResponse:
    path = request.GET.get("path", "")
    found = LookedAt(path, inspection=point_services.inspection_of(path))
    return render(request, "actions/reading.html", {"page": {"name": name}, "verdict": found})


def looked_at(page: PipelinePage, form: RestoreForm) -> LookedAt | None:
    """None: there is no point to choose from."""
    asked = _asked(page, form)
    if asked is None:
        return None
    try:
        found = point_services.preflight(asked)
    except Rejected as refusal:
        return LookedAt(asked.path, refusal=str(refusal))
    if not found.is_possible:
        return LookedAt(asked.path, found)
    rows = rows_after(asked.path, pipeline_named(page.name))
    try:
        point_services.begin_inspection(asked.path)
    except Rejected as refusal:  # too many readings are under way; the restore may still go on
        return LookedAt(asked.path, found, not_read=str(refusal), rows_set_aside=rows)
    inspection = point_services.inspection_of(asked.path)
    return LookedAt(asked.path, found, inspection=inspection, rows_set_aside=rows)


def _asked(page: PipelinePage, form: RestoreForm) -> Restore | None:
    """What the form holds now, or its initial values if nothing was changed."""
    choices = [path for path, _ in form.fields["path"].choices]  # type: ignore[attr-defined]
    path = form["path"].value() or next(iter(choices), "")
    if not path:
        return None
    parallelism = str(form["parallelism"].value())
    return Restore(
        pipeline=page.name,
        path=path,
        parallelism=int(parallelism) if parallelism.isdecimal() else page.parallelism,
        allow_non_restored_state=form["allow_non_restored_state"].value() in (True, "on"),
        reads_files=False,
    )
