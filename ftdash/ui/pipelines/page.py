"""The pages of pipelines. Each is rendered whole, and also as regions that an open tab replaces.

The address chooses the run, the checkpoint whose timeline is drawn, and the page of the history;
without a choice the page follows the newest. All regions of one refresh come from one read, so that
the numbers on a page belong together. Decides nothing: the queries supply what is shown.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django.http import Http404, HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.alerts import queries as alert_queries
from ftdash.checkpoints.answers import AlignmentTimeline, CheckpointHistory, RecoveryPoint
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
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
    ShownState,
    grouped,
)
from ftdash.metrics.queries import loads as metric_queries
from ftdash.metrics.queries.loads import SamplePoint, run_loads
from ftdash.runs.fleet_answers import Concern, Fleet
from ftdash.runs.queries import pipelines as queries
from ftdash.ui import events, sentences
from ftdash.ui.actions.page import ACTIONS
from ftdash.ui.events import shared
from ftdash.ui.figures.alignment import alignment
from ftdash.ui.figures.recovery import recovery_axis, recovery_phases
from ftdash.ui.figures.style import Figure, memory, throughput
from ftdash.ui.pipelines.dataflow import Dataflow, dataflow
from ftdash.watching import queries as watched_queries
from pipelines.domain.commands import Needs, RestorePipeline
from pipelines.domain.status import RecoveryPhase

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
class Chart:
    """One figure and the sentence above it; None if there is nothing to draw."""

    name: str
    sentence: str
    figure: Figure | None

    @property
    def element_id(self) -> str:
        return f"values-{self.name}"

    @property
    def json(self) -> str:
        return msgspec.json.encode(self.figure).decode()


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

    @classmethod
    def parse(cls, query: QueryDict) -> "Address":
        return cls(
            run_id=query.get("run") or None,
            checkpoint_id=number_or_none(query.get("checkpoint")),
            history_page=number_or_none(query.get("page")) or 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    page: PipelinePage
    address: Address
    shown_run: RunBrief | None  # the one whose history is shown
    is_newest_run: bool
    data_at: datetime | None  # the age of what is shown
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

    recovery_phase_names = PHASES

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
    shown, found = queries.fleet(), incident_queries.open_incidents()
    having = {each.pipeline for each in found}
    return {
        "fleet": shown,
        "sentence": sentences.fleet(shown, having),
        "firing": alert_queries.firing(),
        "incidents": found,
        "having_incidents": having,
        "concerns": concerns_of(shown, having),
        "watched": watched_queries.watched(),
    }


@dataclass(frozen=True, slots=True)
class SharedConcern:
    """What holds for several pipelines in the same words is said once."""

    text: str
    concern: Concern
    pipelines: list[str]


def concerns_of(shown: Fleet, having_incidents: Collection[str]) -> list[SharedConcern]:
    """Of the pipelines without an incident, the most pressing first."""
    found: dict[tuple[Concern, str], list[str]] = {}
    for each in shown.pipelines:
        if each.attention and each.name not in having_incidents:
            found.setdefault((each.concern, each.attention), []).append(each.name)
    return [SharedConcern(text, concern, names) for (concern, text), names in found.items()]


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


@require_GET
@never_cache
async def event_stream(request: HttpRequest) -> StreamingHttpResponse:
    board = events.board_of_this_loop(lambda: queries.versions() | watched_queries.versions())
    response = StreamingHttpResponse(
        events.messages(board), content_type="text/event-stream; charset=utf-8"
    )
    response["X-Accel-Buffering"] = "no"  # a buffering proxy would hold the messages back
    return response
