"""The figures of each operator and subtask in one checkpoint, as lines of tables and a chart. Pure.

The chart shows what the subtasks held back while they aligned.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.text import slugify

from ftdash.checkpoints.answers import (
    AlignmentTimeline,
    ChannelTimeline,
    Distribution,
    SubtaskTimeline,
)
from ftdash.checkpoints.queries.detail import CheckpointDetail, SubtaskSpread, VertexPart
from ftdash.checkpoints.queries.statistics import MeasuredCheckpoint
from ftdash.formats import duration, plural, size
from ftdash.ui.figures.heat import Bands, Measure
from ftdash.ui.figures.style import (
    DASHES,
    MILLISECONDS,
    SERIES,
    Figure,
    Json,
    axis,
    escaped,
    layout,
)
from ftdash.ui.metrics.operators import SYMBOLS
from pipelines.domain.status import CheckpointKind

CHANNELS_MAX = 10
"""As many as colours and dashes can distinguish; the table below the chart has all of them."""

CHANNELS_LISTED = 60
"""The most channels in a table; the file of all subtasks has the rest."""

SUBTASKS_SHOWN = 20
"""The subtasks of each operator on one page, the worst first."""

Held = tuple[SubtaskTimeline, ChannelTimeline]


def held_back(timeline: AlignmentTimeline | None) -> Figure | None:
    """Draws one line per channel, the fullest first, with a step at each measured arrival.

    A line ends at the last barrier, when the subtask reads the channel again.
    """
    fullest = [held for held in fullest_channels(timeline, CHANNELS_MAX) if held[1].steps]
    if not fullest:
        return None
    traces = [line(index, *held) for index, held in enumerate(fullest)]
    return {"data": traces, "layout": held_back_layout(len(traces))}


def held_channels(timeline: AlignmentTimeline | None) -> list[Held]:
    """Returns the channels that made records wait, in the order of the timeline.

    If there are more than `CHANNELS_LISTED` channels, returns that many, the fullest first.
    """
    subtasks = timeline.subtasks if timeline else []
    if sum(len(subtask.channels) for subtask in subtasks) <= CHANNELS_LISTED:
        return waiting_channels(subtasks)
    return fullest_channels(timeline, CHANNELS_LISTED)


def fullest_channels(timeline: AlignmentTimeline | None, count: int) -> list[Held]:
    """Returns the `count` channels that held back most, the fullest first.

    They belong to the `count` subtasks with the fullest channels, so this reads only those.
    """
    subtasks = sorted(timeline.subtasks if timeline else [], key=lambda each: -each.fullest)
    found = sorted(waiting_channels(subtasks[:count]), key=lambda held: -held[1].buffered_records)
    return found[:count]


def waiting_channels(subtasks: Iterable[SubtaskTimeline]) -> list[Held]:
    return [(s, c) for s in subtasks for c in s.channels if c.blocked_ms > 0 and c.buffered_records]


def line(index: int, subtask: SubtaskTimeline, channel: ChannelTimeline) -> Json:
    end_ms = channel.arrived_ms + channel.blocked_ms
    color = SERIES[index % len(SERIES)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escaped(name_of(subtask, channel)),
        "x": [round(step.at_ms, 3) for step in channel.steps] + [round(end_ms, 3)],
        "y": [step.records for step in channel.steps] + [channel.steps[-1].records],
        "customdata": [
            f"{plural(step.records, 'record')}, {size(step.size_bytes)}, held back"
            f" {duration(step.at_ms)} after the trigger"
            for step in channel.steps
        ]
        + [f"served again {duration(end_ms)} after the trigger"],
        "hovertemplate": "<b>%{fullData.name}</b><br>%{customdata}<extra></extra>",
        "line": {"shape": "hv", "width": 2, "color": color, "dash": DASHES[index % len(DASHES)]},
        "marker": {"size": 5, "color": color, "symbol": SYMBOLS[index // len(DASHES)]},
    }


def name_of(subtask: SubtaskTimeline, channel: ChannelTimeline) -> str:
    sender = f"{channel.upstream}[{channel.upstream_subtask}]"
    return f"{sender} to {subtask.vertex}[{subtask.subtask}]"


def held_back_layout(lines: int) -> Json:
    return layout(
        210 + 22 * lines,
        showlegend=True,
        hovermode="closest",
        xaxis=axis(
            title={"text": "ms after the trigger", "standoff": 6},
            rangemode="tozero",
            **MILLISECONDS,
        ),
        yaxis=axis(rangemode="tozero", title={"text": "records held back", "standoff": 4}),
    )


@dataclass(frozen=True, slots=True)
class Column:
    label: str
    of: Callable[[SubtaskTimeline], float]
    spread: Callable[[SubtaskSpread], Distribution]
    write: Callable[[float], str]

    @property
    def measure(self) -> Measure:
        return Measure(self.label, "B" if self.write is size else "ms")

    @property
    def key(self) -> str:
        """Its name in addresses."""
        return slugify(self.label)


COLUMNS = [
    Column(
        "End to end duration",
        lambda each: each.acknowledged_ms,
        lambda s: s.acknowledged_ms,
        duration,
    ),
    Column("Start delay", lambda each: each.start_delay_ms, lambda s: s.start_delay_ms, duration),
    Column("Alignment", lambda each: each.alignment_ms, lambda s: s.alignment_ms, duration),
    Column("Sync", lambda each: each.sync_ms, lambda s: s.sync_ms, duration),
    Column("Async", lambda each: each.async_ms, lambda s: s.async_ms, duration),
    Column("Uploaded", lambda each: each.uploaded_bytes, lambda s: s.uploaded_bytes, size),
    Column("Full size", lambda each: each.state_bytes, lambda s: s.state_bytes, size),
    Column("Held back", lambda each: each.buffered_bytes, lambda s: s.buffered_bytes, size),
    Column("In flight, kept", lambda each: each.persisted_bytes, lambda s: s.persisted_bytes, size),
]


MEASURES = [column.measure for column in COLUMNS]


def is_wide(detail: CheckpointDetail) -> bool:
    """True if an operator has more subtasks than one page of its table."""
    return any(part.subtask_count > SUBTASKS_SHOWN for part in detail.parts)


def bands_of(detail: CheckpointDetail, measure: Measure) -> Bands:
    column = COLUMNS[MEASURES.index(measure)]
    return {
        part.vertex.uid: [
            column.of(part.subtasks[index]) if index in part.subtasks else None
            for index in range(part.subtask_count)
        ]
        for part in detail.parts
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskFigures:
    """One subtask's line in the file of a checkpoint."""

    operator: str
    subtask: int
    acknowledged_ms: float
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    uploaded_bytes: int
    state_bytes: int
    buffered_records: int
    buffered_bytes: int
    persisted_bytes: int
    is_unaligned: bool
    waited_for: str  # the sender whose barrier came last; empty for a source


def all_figures(timeline: AlignmentTimeline) -> list[SubtaskFigures]:
    return [
        SubtaskFigures(
            operator=each.vertex,
            subtask=each.subtask,
            acknowledged_ms=each.acknowledged_ms,
            start_delay_ms=each.start_delay_ms,
            alignment_ms=each.alignment_ms,
            sync_ms=each.sync_ms,
            async_ms=each.async_ms,
            uploaded_bytes=each.uploaded_bytes,
            state_bytes=each.state_bytes,
            buffered_records=each.buffered_records,
            buffered_bytes=each.buffered_bytes,
            persisted_bytes=each.persisted_bytes,
            is_unaligned=each.is_unaligned,
            waited_for=_last_sender(each),
        )
        for each in timeline.subtasks
    ]


def _last_sender(subtask: SubtaskTimeline) -> str:
    last = max(subtask.channels, key=lambda each: each.arrived_ms, default=None)
    return f"{last.upstream}[{last.upstream_subtask}]" if last else ""


@dataclass(frozen=True, slots=True)
class Heading:
    """`choice` is the order that choosing it leads to; None means by index."""

    label: str
    key: str
    direction: str  # in ARIA's words; empty if it does not order the rows
    choice: str | None


@dataclass(frozen=True, slots=True)
class SubtaskOrder:
    """The order of subtasks: by index, or by a figure."""

    column: Column | None = None
    is_descending: bool = False

    @classmethod
    def parse(cls, text: str) -> "SubtaskOrder":
        """Reads `alignment`, or `-alignment` for greatest first. An unknown name means no order."""
        found = [each for each in COLUMNS if each.key == text.removeprefix("-")]
        return cls(found[0], text.startswith("-")) if found else cls()

    def headings(self) -> list[Heading]:
        """Choosing one leads to the greatest first, then to the least, then back to no order."""
        return [self._heading(column) for column in COLUMNS]

    def indices(self, subtasks: Mapping[int, SubtaskTimeline], count: int) -> list[int]:
        """Orders all subtasks. Those that have not acknowledged have no figures, and come last."""
        column = self.column
        if column is None:
            return list(range(count))
        known = [index for index in range(count) if index in subtasks]
        known.sort(key=lambda index: column.of(subtasks[index]), reverse=self.is_descending)
        return [*known, *(index for index in range(count) if index not in subtasks)]

    def _heading(self, column: Column) -> Heading:
        if column is not self.column:
            return Heading(column.label, column.key, "", f"-{column.key}")
        if self.is_descending:
            return Heading(column.label, column.key, "descending", column.key)
        return Heading(column.label, column.key, "ascending", None)


@dataclass(frozen=True, slots=True)
class SubtaskRow:
    index: int
    at: datetime | None  # None if it has not acknowledged
    part: SubtaskTimeline | None


@dataclass(frozen=True, slots=True)
class SpreadRow:
    label: str
    cells: list[str]  # in the order of `COLUMNS`


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """`subtasks` are those of one page; `first` is the place of the first one, counted from 1."""

    part: VertexPart
    at: datetime | None  # of its newest acknowledgement
    subtasks: list[SubtaskRow]
    spread: list[SpreadRow]  # over all subtasks; empty before the first acknowledgement
    first: int

    @property
    def last(self) -> int:
        return self.first + len(self.subtasks) - 1


def operator_rows(detail: CheckpointDetail, order: SubtaskOrder, page: int) -> list[OperatorRow]:
    """`page` counts from 1; an operator with fewer pages shows its last one.

    Wide operators begin with the slowest subtasks.
    """
    return [_operator_row(part, detail.found.row.trigger_at, order, page) for part in detail.parts]


def _operator_row(
    part: VertexPart, trigger_at: datetime, order: SubtaskOrder, page: int
) -> OperatorRow:
    is_wide = part.subtask_count > SUBTASKS_SHOWN
    slowest = SubtaskOrder(COLUMNS[0], is_descending=True)
    chosen = slowest if is_wide and order.column is None else order
    pages = -(-part.subtask_count // SUBTASKS_SHOWN)
    first = SUBTASKS_SHOWN * (min(page, pages) - 1)
    indices = chosen.indices(part.subtasks, part.subtask_count)[first : first + SUBTASKS_SHOWN]
    return OperatorRow(
        part=part,
        at=_after(trigger_at, part.last_acknowledged_ms),
        subtasks=[_subtask_row(each, part.subtasks.get(each), trigger_at) for each in indices],
        spread=spread_rows(part.spread) if part.subtasks else [],
        first=first + 1,
    )


def _subtask_row(index: int, part: SubtaskTimeline | None, trigger_at: datetime) -> SubtaskRow:
    return SubtaskRow(index, _after(trigger_at, part.acknowledged_ms if part else None), part)


def _after(trigger_at: datetime, ms: float | None) -> datetime | None:
    return None if ms is None else trigger_at + timedelta(milliseconds=ms)


def spread_rows(spread: SubtaskSpread) -> list[SpreadRow]:
    found = [(column.spread(spread), column.write) for column in COLUMNS]
    return [
        SpreadRow("Minimum", [write(each.minimum) for each, write in found]),
        SpreadRow("Average", [write(each.average) for each, write in found]),
        SpreadRow("Maximum", [write(each.maximum) for each, write in found]),
    ]


def type_words(found: MeasuredCheckpoint) -> str:
    """Names the type as Flink's page does, which has no name for the last checkpoint of a run."""
    if found.row.kind == CheckpointKind.SAVEPOINT:
        return "savepoint to stop with" if found.ends_run else "savepoint"
    aligned = "unaligned" if found.is_unaligned else "aligned"
    is_final = found.row.kind == CheckpointKind.FINAL
    return f"{aligned} checkpoint{', the final one' if is_final else ''}"
