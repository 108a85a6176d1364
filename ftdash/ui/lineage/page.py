"""The page of a pipeline's lineage: which run was restored from which point of which other run."""

from dataclasses import dataclass
from datetime import datetime

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.formats import plural
from ftdash.jobs.answers import PipelinePage
from ftdash.points.queries import LineagePoint, LineageRun, lineage
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.events import shared
from ftdash.ui.pipelines.page import data_at

RUNS_MAX = 60
POINTS_LISTED = 6
INDENTS_MAX = 8
"""The tree is indented no further than this; the column next to it names the parent."""


@dataclass(frozen=True, slots=True)
class LineageRow:
    run: LineageRun
    parent: LineageRun | None  # None if it has none, or its parent is not shown

    @property
    def branch(self) -> str:
        """The tree lines before the name; screen readers get the column instead."""
        depth = self.run.depth
        return "" if depth == 0 else "\N{NO-BREAK SPACE}" * 3 * min(depth - 1, INDENTS_MAX) + "└─"

    @property
    def forked(self) -> list[LineagePoint]:
        return [point for point in self.run.points if point.forks]

    @property
    def kept(self) -> list[LineagePoint]:
        """The points from which a run can be restored, newest first."""
        return [point for point in reversed(self.run.points) if point.is_available]

    @property
    def listed(self) -> list[LineagePoint]:
        return self.kept[:POINTS_LISTED]

    @property
    def unlisted_count(self) -> int:
        return max(0, len(self.kept) - POINTS_LISTED)


@dataclass(frozen=True, slots=True)
class LineageView:
    page: PipelinePage
    data_at: datetime | None
    sentence: str
    rows: list[LineageRow]  # each run before those that were restored from it

    @property
    def cut_at(self) -> int | None:
        """The most runs that are shown, if there may be older ones."""
        return RUNS_MAX if len(self.rows) >= RUNS_MAX else None


@require_GET
@never_cache
def page(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "lineage/page.html", {"view": lineage_view(name)})


@require_GET
@never_cache
@shared
def regions(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "lineage/regions.html", {"view": lineage_view(name), "is_refresh": True})


def lineage_view(name: str) -> LineageView:
    """Raises Http404 if the pipeline does not exist."""
    shown = queries.pipeline_page(name)
    runs = lineage(name, RUNS_MAX)
    if shown is None or runs is None:
        raise Http404(f"There is no pipeline named {name}.")
    by_id = {run.run_id: run for run in runs}
    rows = [LineageRow(run, by_id.get(run.parent_run_id or "")) for run in runs]
    return LineageView(shown, data_at(shown), sentence(shown, by_id), rows)


def sentence(shown: PipelinePage, runs: dict[str, LineageRun]) -> str:
    """Says what the output of the newest run is based on."""
    newest = runs.get(shown.run.run_id) if shown.run else None
    if newest is None:
        return "This pipeline has not been started yet."
    name = f"Run {newest.number} of {newest.pipeline}"
    if newest.restored_from is None:
        return f"{name}, the newest, began at the beginning of its input."
    point = f"{name}, the newest, was restored from checkpoint {newest.restored_checkpoint_id}"
    if newest.parent_run_id is None:
        return f"{point} of an unknown run, in {newest.restored_from}."
    restores = plural(newest.depth, "restore")
    return f"{point} of run {newest.parent_run_id}, {restores} after the run that {_began(newest)}."


def _began(run: LineageRun) -> str:
    """Says how the first run of its tree began."""
    if run.tree_restored_from is None:
        return "began at the beginning"
    return f"was restored from {run.tree_restored_from}, which is not known here"
