"""The pages of pipelines. Each is rendered whole, and also as regions that an open tab replaces.

The address chooses the run, the checkpoint whose timeline is drawn, and the page of the history;
without a choice the page follows the newest. All regions of one refresh come from one read, so that
the numbers on a page belong together. The pages decide nothing: the queries supply all they show.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django.http import Http404, HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.alerts import queries as alert_queries
from ftdash.checkpoints.answers import (
    AlignmentTimeline,
    ChannelTimeline,
    CheckpointHistory,
    RecoveryPoint,
    SubtaskTimeline,
)
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.flink_clusters import queries as flink_queries
from ftdash.formats import words
from ftdash.incidents import queries as incident_queries
from ftdash.jobs.answers import (
    FailureGroup,
    Notice,
    PipelinePage,
    QuarantineView,
    RecoveryAxis,
    RecoveryView,
    RequestView,
    RunBrief,
    RunView,
    ShownState,
    SlotView,
    SubtaskView,
    grouped,
)
from ftdash.metrics.queries import loads as metric_queries
from ftdash.metrics.queries.loads import SamplePoint, run_loads
from ftdash.runs.queries import pipelines as queries
from ftdash.ui import events, sentences
from ftdash.ui.actions.page import ACTIONS
from ftdash.ui.events import shared
from ftdash.ui.figures.alignment import alignment, channels_to_draw, subtasks_to_draw
from ftdash.ui.figures.heat import Bands, Measure, chosen_measure, heat_map, heat_sentence
from ftdash.ui.figures.recovery import recovery_axis, recovery_phases
from ftdash.ui.figures.style import Chart, memory, throughput
from ftdash.ui.pipelines.dataflow import Dataflow, dataflow
from ftdash.watching import queries as watched_queries
from pipelines.domain.commands import Needs, RestorePipeline
from pipelines.domain.status import RecoveryPhase

LISTED_MAX = 20
"""The most rows on a page of the table. Operators with no more than this need no map."""

Value = Callable[[SubtaskView], float | None]

_VALUES: dict[Measure, Value] = {
    Measure("Busy", "%"): lambda each: each.busy_ratio,
    Measure("Backpressured", "%"): lambda each: each.backpressured_ratio,
    Measure("Idle", "%"): lambda each: each.idle_ratio,
    Measure("Records queued", "records"): lambda each: each.queued_records,
    Measure("Time to consume them", "ms"): lambda each: each.queued_ms,
    Measure("State", "B"): lambda each: each.state_bytes,
}
LOAD_MEASURES = list(_VALUES)


@dataclass(frozen=True, slots=True)
class SubtaskLoads:
    """`run` None means that the pipeline never ran."""

    run: RunView | None

    @property
    def all(self) -> list[SubtaskView]:
        return self.run.subtasks if self.run else []

    @property
    def is_wide(self) -> bool:
        """True if an operator has more subtasks than a table shows at once."""
        run = self.run
        vertices = run.vertices if run else []
        return any(each.subtask_count(run.parallelism) > LISTED_MAX for each in vertices if run)

    @property
    def pages(self) -> int:
        return -(-len(self.all) // LISTED_MAX) if self.is_wide else 1

    def listed(self, page: int) -> list[SubtaskView]:
        """Returns all subtasks in order; for a wide run one page, from 1, the busiest first."""
        if not self.is_wide:
            return self.all
        first = LISTED_MAX * (min(page, self.pages) - 1)
        busiest = sorted(self.all, key=lambda each: -each.busy_ratio)
        return busiest[max(0, first) : first + LISTED_MAX]

    def chart(self, measure: Measure) -> Chart:
        bands = self.bands(measure)
        figure = heat_map(bands, measure) if self.is_wide else None
        return Chart("heat", heat_sentence(bands, measure, "in the newest report"), figure)

    def bands(self, measure: Measure) -> Bands:
        of = _VALUES[measure]
        found: dict[str, dict[int, float | None]] = {}
        for each in self.all:
            found.setdefault(each.vertex, {})[each.subtask] = of(each)
        return {
            uid: [values.get(index) for index in range(max(values) + 1)]
            for uid, values in found.items()
        }


BUTTONS = tuple(slug for slug, form in ACTIONS.items() if form.is_button)
"""Actions in their order on the page."""

COUNTER_LABELS = {
    "unmatched_left": "Without a match in the other input",
    "late_records": "Too late for their window",
    "records_without_time": "Without event time",
    "records_outside_windows": "Between two windows",
    "barriers_sent": "Barriers sent, one into each channel",
    "records_quarantined": "Set aside in the quarantine",
    "records_replayed": "Given to the operators again, from the quarantine",
    "timestamps_far_ahead": "Event time too far ahead to be believed",
}
PHASES = tuple(phase.value for phase in RecoveryPhase)


@dataclass(frozen=True, slots=True)
class Button:
    slug: str
    button: str
    look: str
    is_possible: bool
    why_not: str
    consequence: str


@dataclass(frozen=True, slots=True)
class Counter:
    operator: str
    label: str
    count: int


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """A recovery with the duration of each of `PHASES`; None if it was not reached."""

    recovery: RecoveryView
    durations: list[float | None]


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


def worth_showing(page: PipelinePage, slug: str) -> bool:
    """Offers a start if nothing runs, and everything else if something does."""
    command = ACTIONS[slug].command
    is_live = page.run is not None and not page.run.state.is_terminal
    if command.needs is Needs.NO_LIVE_RUN:
        return not is_live
    if command.needs is Needs.START_TO_UNDO:
        return page.actions[command.kind].is_possible
    if command.needs is Needs.WAITING:
        return page.run is not None and page.run.restart_at is not None
    return is_live and (page.allows_faults or not command.is_fault)


def button(page: PipelinePage, slug: str) -> Button:
    form = ACTIONS[slug]
    offer = page.actions[form.command.kind]
    return Button(slug, form.button, form.look, offer.is_possible, offer.why_not, offer.consequence)


def durations_of(recovery: RecoveryView) -> list[float | None]:
    reached = {view.phase: view.duration_ms for view in recovery.phases}
    return [reached.get(phase) for phase in PHASES]


def counter_of(name: str, number: int) -> Counter:
    """Counters are named `<uid>.<name>`."""
    operator, _, counted = name.rpartition(".")
    return Counter(operator, COUNTER_LABELS.get(counted, words(counted)), number)


CHECKPOINTS_PER_PAGE = 10
REQUESTS_MAX = 20
RECOVERY_POINTS_MAX = 15
SAMPLES_LISTED = 20
SLOTS_LISTED = 16
NOTICES_MAX = 50
RECENT_NOTICES_MAX = 4
NEWS_FOR = timedelta(minutes=10)
FAILURES_MAX = 20
QUARANTINED_MAX = 20


@dataclass(frozen=True, slots=True)
class Address:
    """The choices in the query string; None follows the newest."""

    run_id: str | None
    checkpoint_id: int | None
    history_page: int
    rows_page: int = 1  # of the table of subtasks
    figure: str | None = None  # of the heat map

    @classmethod
    def parse(cls, query: QueryDict) -> "Address":
        return cls(
            run_id=query.get("run") or None,
            checkpoint_id=number_or_none(query.get("checkpoint")),
            history_page=number_or_none(query.get("page")) or 1,
            rows_page=number_or_none(query.get("rows")) or 1,
            figure=query.get("figure"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    page: PipelinePage
    address: Address
    shown_run: RunBrief | None  # the one whose history is shown
    is_newest_run: bool
    data_at: datetime | None  # the time of the data shown
    history: CheckpointHistory | None
    timeline: AlignmentTimeline | None
    axis: RecoveryAxis | None
    quarantine: QuarantineView | None
    newest_samples: list[SamplePoint]
    points: list[RecoveryPoint]
    requests: list[RequestView]
    buttons: list[Button]
    dataflow: Dataflow  # of the newest run
    alignment_chart: Chart
    axis_chart: Chart
    phases_chart: Chart
    throughput_chart: Chart
    memory_chart: Chart
    subtasks: SubtaskLoads
    measure: Measure
    heat_chart: Chart

    recovery_phase_names = PHASES

    measures = LOAD_MEASURES

    @property
    def drawn_subtasks(self) -> list[SubtaskTimeline]:
        """The subtasks of the alignment chart."""
        return subtasks_to_draw(self.timeline.subtasks) if self.timeline else []

    @property
    def drawn_channels(self) -> list[tuple[SubtaskTimeline, ChannelTimeline]]:
        return [(each, c) for each in self.drawn_subtasks for c in channels_to_draw(each)]

    @property
    def listed_subtasks(self) -> list[SubtaskView]:
        """All subtasks, or one page of them, the busiest first."""
        return self.subtasks.listed(self.rows_page)

    @property
    def rows_page(self) -> int:
        return max(1, min(self.address.rows_page, self.subtasks.pages))

    @property
    def slots_listed(self) -> list[SlotView]:
        """All slots, or those with the most memory."""
        found = self.page.run.slots if self.page.run else []
        if len(found) <= SLOTS_LISTED:
            return found
        return sorted(found, key=lambda slot: -(slot.resident_bytes or 0))[:SLOTS_LISTED]

    @property
    def slots_unlisted(self) -> int:
        return len(self.page.run.slots) - len(self.slots_listed) if self.page.run else 0

    @property
    def notices(self) -> list[Notice]:
        return list(reversed(self.axis.notices[-NOTICES_MAX:])) if self.axis else []

    @property
    def recent_notices(self) -> list[Notice]:
        """The notices that are still news, for the top; the history below has the rest."""
        since = self.page.now - NEWS_FOR
        return [notice for notice in self.notices if notice.at > since][:RECENT_NOTICES_MAX]

    @property
    def newest_failures(self) -> list[FailureGroup]:
        return grouped(reversed(self.axis.failures))[:FAILURES_MAX] if self.axis else []

    @property
    def newest_recoveries(self) -> list[RecoveryRow]:
        recoveries = self.axis.recoveries[-FAILURES_MAX:] if self.axis else []
        return [RecoveryRow(each, durations_of(each)) for each in reversed(recoveries)]

    @property
    def last_to_running_ms(self) -> float | None:
        return self.axis.recoveries[-1].to_running_ms if self.axis else None

    @property
    def counters(self) -> list[Counter]:
        found = self.page.run.counters if self.page.run else {}
        return [counter_of(name, number) for name, number in sorted(found.items())]

    @property
    def is_silent(self) -> bool:
        """True if the last report may be outdated."""
        run = self.page.run
        return run is not None and run.state in (ShownState.STALE, ShownState.UNKNOWN)

    @property
    def is_empty_failure(self) -> bool:
        """True if the shown run failed before it reported anything."""
        run = self.page.run
        has_failed = run is not None and run.state is ShownState.FAILED and self.is_newest_run
        has_history = self.history is not None and bool(self.history.rows)
        return has_failed and not self.newest_samples and not has_history

    @property
    def can_restore(self) -> bool:
        return self.page.actions[RestorePipeline.kind].is_possible

    @property
    def why_no_restore(self) -> str:
        return self.page.actions[RestorePipeline.kind].why_not

    @property
    def parameters(self) -> dict[str, str]:
        return self.page.run.parameters if self.page.run else self.page.parameters

    @property
    def settings(self) -> dict[str, str]:
        return self.page.run.settings if self.page.run else self.page.settings


def pipeline_view(name: str, address: Address) -> PipelineView:
    """Raises Http404 if the pipeline or its run does not exist."""
    page = queries.pipeline_page(name)
    if page is None:
        raise Http404(f"There is no pipeline named {name}.")
    shown = shown_run(page, address)
    run_id = shown.run_id if shown else ""
    timeline = checkpoint_queries.alignment(run_id, address.checkpoint_id)
    axis = queries.recovery_axis(run_id)
    samples = metric_queries.samples(run_id)
    subtasks = SubtaskLoads(page.run)
    measure = chosen_measure(LOAD_MEASURES, address.figure)
    return PipelineView(
        page=page,
        address=address,
        shown_run=shown,
        is_newest_run=page.run is None or run_id == page.run.run_id,
        data_at=data_at(page),
        history=checkpoint_queries.checkpoints(run_id, address.history_page, CHECKPOINTS_PER_PAGE),
        timeline=timeline,
        axis=axis,
        quarantine=queries.quarantine(run_id, QUARANTINED_MAX),
        newest_samples=samples[: -SAMPLES_LISTED - 1 : -1],
        points=checkpoint_queries.recovery_points(name, RECOVERY_POINTS_MAX),
        requests=queries.requests(name, REQUESTS_MAX),
        buttons=[button(page, slug) for slug in BUTTONS if worth_showing(page, slug)],
        dataflow=dataflow(page.run, run_loads(page.run.run_id) if page.run else None),
        subtasks=subtasks,
        measure=measure,
        heat_chart=subtasks.chart(measure),
        **charts(timeline, axis, samples),
    )


def shown_run(page: PipelinePage, address: Address) -> RunBrief | None:
    if address.run_id is None:
        return page.runs[0] if page.runs else None
    for run in page.runs:
        if run.run_id == address.run_id:
            return run
    raise Http404(f"{page.name} has no run {address.run_id}.")


def data_at(page: PipelinePage) -> datetime | None:
    """An ended run is as fresh as the projector; a live one as its driver's last report."""
    if page.run is None or page.run.state.is_terminal or page.run.state is ShownState.CREATED:
        return page.projector.at
    return page.run.as_of


def number_or_none(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 19 else None


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
    return {
        "view": view,
        "firing": alert_queries.firing(name),
        "incidents": incident_queries.open_incidents(name),
    }


def _versions() -> dict[str, str]:
    """Returns the versions of everything that has live pages."""
    return queries.versions() | watched_queries.versions() | flink_queries.versions()


@require_GET
@never_cache
async def event_stream(request: HttpRequest) -> StreamingHttpResponse:
    board = events.board_of_this_loop(_versions)
    response = StreamingHttpResponse(
        events.messages(board), content_type="text/event-stream; charset=utf-8"
    )
    response["Content-Encoding"] = "identity"  # if compressed, messages would wait for later ones
    response["X-Accel-Buffering"] = "no"  # a buffering proxy would hold the messages back
    return response
