"""What a pipeline's page shows for the address it was asked with: one read, one value.

The address chooses the run, the checkpoint whose timeline is drawn, and the page of the history;
without a choice the page follows the newest.
"""

from dataclasses import dataclass
from datetime import datetime

from django.http import Http404, QueryDict

from ftdash.checkpoints import queries as checkpoint_queries
from ftdash.checkpoints.answers import AlignmentTimeline, CheckpointHistory, RecoveryPoint
from ftdash.jobs import queries as job_queries
from ftdash.jobs.answers import (
    ActionOffer,
    PipelinePage,
    RecoveryAxis,
    RequestView,
    RunBrief,
    ShownState,
)
from ftdash.jobs.models import RequestKind
from ftdash.metrics import queries as metric_queries
from ftdash.metrics.answers import SamplePoint
from ftdash.ui import sentences
from ftdash.ui.figures.alignment import alignment
from ftdash.ui.figures.recovery import recovery_axis
from ftdash.ui.figures.recovery_phases import recovery_phases
from ftdash.ui.figures.samples import memory, throughput
from ftdash.ui.figures.style import Figure

CHECKPOINTS_PER_PAGE = 10
REQUESTS_MAX = 20
RECOVERY_POINTS_MAX = 15
BUTTONS = (  # in the order in which they stand
    RequestKind.CHECKPOINT,
    RequestKind.SAVEPOINT,
    RequestKind.STOP_WITH_SAVEPOINT,
    RequestKind.RESTORE,
    RequestKind.SUBMIT,
    RequestKind.KILL_SLOT,
    RequestKind.CANCEL,
)


@dataclass(frozen=True, slots=True)
class Address:
    """The choices in the query string; None follows the newest."""

    run_id: str | None
    checkpoint_id: int | None
    history_page: int

    @classmethod
    def parse(cls, query: QueryDict) -> "Address":
        return cls(
            run_id=query.get("run") or None,
            checkpoint_id=number_or_none(query.get("checkpoint")),
            history_page=number_or_none(query.get("page")) or 1,
        )


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure, the sentence above it, and what it shows when there is nothing to draw."""

    name: str
    sentence: str
    figure: Figure | None


@dataclass(frozen=True, slots=True)
class PipelineView:
    page: PipelinePage
    address: Address
    shown_run: RunBrief | None  # the one whose history is shown
    is_newest_run: bool
    data_at: datetime | None  # the age of what is shown
    history: CheckpointHistory | None
    timeline: AlignmentTimeline | None
    axis: RecoveryAxis | None
    points: list[RecoveryPoint]
    requests: list[RequestView]
    buttons: list[ActionOffer]
    alignment_chart: Chart
    axis_chart: Chart
    phases_chart: Chart
    throughput_chart: Chart
    memory_chart: Chart


def pipeline_view(name: str, address: Address) -> PipelineView:
    """Raises Http404 for a pipeline, or a run of it, that does not exist."""
    page = job_queries.pipeline_page(name)
    if page is None:
        raise Http404(f"There is no pipeline named {name}.")
    shown = shown_run(page, address)
    run_id = shown.run_id if shown else ""
    timeline = checkpoint_queries.alignment(run_id, address.checkpoint_id)
    axis = job_queries.recovery_axis(run_id)
    samples = metric_queries.samples(run_id)
    return PipelineView(
        page=page,
        address=address,
        shown_run=shown,
        is_newest_run=page.run is None or run_id == page.run.run_id,
        data_at=data_at(page),
        history=checkpoint_queries.checkpoints(run_id, address.history_page, CHECKPOINTS_PER_PAGE),
        timeline=timeline,
        axis=axis,
        points=checkpoint_queries.recovery_points(name, RECOVERY_POINTS_MAX),
        requests=job_queries.requests(name, REQUESTS_MAX),
        buttons=[page.actions[kind] for kind in BUTTONS if worth_showing(page, kind)],
        **charts(timeline, axis, samples),
    )


def shown_run(page: PipelinePage, address: Address) -> RunBrief | None:
    if address.run_id is None:
        return page.runs[0] if page.runs else None
    for run in page.runs:
        if run.run_id == address.run_id:
            return run
    raise Http404(f"{page.name} has no run {address.run_id}.")


def charts(
    timeline: AlignmentTimeline | None, axis: RecoveryAxis | None, samples: list[SamplePoint]
) -> dict[str, Chart]:
    return {
        "alignment_chart": Chart("alignment", sentences.alignment(timeline), alignment(timeline)),
        "axis_chart": Chart("axis", sentences.recovery_axis(axis), recovery_axis(axis)),
        "phases_chart": Chart("phases", "", recovery_phases(axis)),
        "throughput_chart": Chart("throughput", sentences.throughput(samples), throughput(samples)),
        "memory_chart": Chart("memory", sentences.memory(samples), memory(samples)),
    }


def worth_showing(page: PipelinePage, kind: RequestKind) -> bool:
    """A start is offered when nothing runs, everything else when something does."""
    is_live = page.run is not None and not page.run.state.is_terminal
    if kind in (RequestKind.SUBMIT, RequestKind.RESTORE):
        return not is_live
    return is_live and (kind is not RequestKind.KILL_SLOT or page.allows_faults)


def data_at(page: PipelinePage) -> datetime | None:
    """A run that has ended is as fresh as the projector; a live one as its driver's last word."""
    if page.run is None or page.run.state.is_terminal or page.run.state is ShownState.CREATED:
        return page.projector.at
    return page.run.as_of


def number_or_none(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 19 else None
