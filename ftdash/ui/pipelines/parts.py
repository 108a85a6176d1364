"""The parts of a pipeline's page, made from the answers of the queries. Pure."""

from dataclasses import dataclass

import msgspec

from ftdash.checkpoints.answers import AlignmentTimeline
from ftdash.formats import words
from ftdash.jobs.answers import PipelinePage, RecoveryAxis, RecoveryView
from ftdash.metrics.queries.loads import SamplePoint
from ftdash.ui import sentences
from ftdash.ui.actions.page import ACTIONS
from ftdash.ui.figures.alignment import alignment
from ftdash.ui.figures.recovery import recovery_axis, recovery_phases
from ftdash.ui.figures.style import Figure, memory, throughput
from pipelines.domain.commands import Needs
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
