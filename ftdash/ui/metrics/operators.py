"""The operators of a run in rows and in charts, and the one that holds the run up. Pure.

A row has means, sums and least values of the operator's subtasks; a chart has a line per operator.
Backpressure shows upstream of its cause. The cause is the busiest subtask among those that get the
records of a backpressured operator. Source: Flink, "Monitoring Back Pressure".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from ftdash.formats import percent, rate, utc
from ftdash.jobs.answers import RunView, ShownState, VertexView
from ftdash.metrics.load_rules import skewed_now
from ftdash.metrics.queries.loads import (
    RunLoads,
    SubtaskLoad,
    VertexMoment,
    by_vertex,
    least_watermark_ms,
    sum_known,
)
from ftdash.times import watermark_moment
from ftdash.ui.figures.style import (
    DASHES,
    LINE_POINTS_MIN,
    SERIES,
    SILENCE,
    Figure,
    Json,
    axis,
    escaped,
    in_both_zones,
    layout,
    moment,
    time_axis,
)


@dataclass(frozen=True, slots=True)
class SubtaskRow:
    load: SubtaskLoad

    @property
    def watermark_at(self) -> datetime | None:
        return watermark_moment(self.load.watermark_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """Ratios are means over the subtasks, numbers their sums; the watermark is the least."""

    uid: str
    operators: list[str]
    busy_ratio: float
    backpressured_ratio: float
    idle_ratio: float
    busiest: SubtaskLoad
    records_in_per_s: float | None
    records_out_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    queued_records: int
    queued_bytes: int
    state_bytes: int
    watermark_at: datetime | None
    subtasks: list[SubtaskRow]
    pending_records: int | None  # for a source: waiting to be read
    queued_ms: int | None  # of the subtask that needs longest to consume its queue
    window_bytes: int | None  # of the channel that may hold most

    @property
    def least_busy_ratio(self) -> float:
        return min(subtask.load.busy_ratio for subtask in self.subtasks)


def operator_rows(vertices: list[VertexView], loads: RunLoads | None) -> list[OperatorRow]:
    """Returns the rows of operators that have reported, in topological order."""
    reported = by_vertex(loads.subtasks) if loads else {}
    return [
        _row(vertex, sorted(reported[vertex.uid], key=lambda load: load.subtask))
        for vertex in vertices
        if vertex.uid in reported
    ]


def is_past(run: RunView | None, loads: RunLoads | None) -> bool:
    """True if the values shown are old: the current ones are unknown, or nothing runs."""
    if run is None or loads is None:
        return False
    return run.state is not ShownState.RUNNING or loads.attempt != run.attempt


def _row(vertex: VertexView, loads: list[SubtaskLoad]) -> OperatorRow:
    count = len(loads)
    return OperatorRow(
        uid=vertex.uid,
        operators=vertex.operators,
        busy_ratio=sum(load.busy_ratio for load in loads) / count,
        backpressured_ratio=sum(load.backpressured_ratio for load in loads) / count,
        idle_ratio=sum(load.idle_ratio for load in loads) / count,
        busiest=max(loads, key=lambda load: load.busy_ratio),
        records_in_per_s=sum_known([load.records_in_per_s for load in loads]),
        records_out_per_s=sum_known([load.records_out_per_s for load in loads]),
        bytes_in_per_s=sum_known([load.bytes_in_per_s for load in loads]),
        bytes_out_per_s=sum_known([load.bytes_out_per_s for load in loads]),
        queued_records=sum(load.queued_records for load in loads),
        queued_bytes=sum(load.queued_bytes for load in loads),
        state_bytes=sum(load.state_bytes for load in loads),
        watermark_at=watermark_moment(least_watermark_ms(loads)),
        subtasks=[SubtaskRow(load) for load in loads],
        pending_records=sum_known([load.pending_records for load in loads]),
        queued_ms=_most([load.queued_ms for load in loads]),
        window_bytes=_most([load.window_bytes for load in loads]),
    )


def _most(values: list[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


BACKPRESSURED_FROM = 0.1
"""Below this, Flink calls backpressure OK."""

BUSY_FROM = 0.5
"""A subtask that works less than this does not hold others up by working."""

UNEVEN_FROM = 0.25
"""A subtask that far above the mean of its operator's subtasks stands out."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`row` is downstream of `held_up`, the last backpressured operator on the way."""

    row: OperatorRow
    held_up: OperatorRow

    @property
    def is_busy(self) -> bool:
        """False if it waits too, for something that is not an operator."""
        return self.row.busiest.busy_ratio >= BUSY_FROM

    @property
    def is_uneven(self) -> bool:
        return self.row.busiest.busy_ratio - self.row.busy_ratio >= UNEVEN_FROM


def bottleneck(rows: list[OperatorRow], vertices: list[VertexView]) -> Bottleneck | None:
    """`rows` are in topological order. Returns None if nothing is backpressured."""
    inputs = {vertex.uid: vertex.inputs for vertex in vertices}
    held_up = [row for row in rows if row.backpressured_ratio >= BACKPRESSURED_FROM]
    for row in reversed(held_up):  # operators after the last of them are not held up
        behind = _downstream(row.uid, inputs)
        suspects = [each for each in rows if each.uid in behind]
        if suspects:
            return Bottleneck(max(suspects, key=_busy), row)
    return None


def sentence(rows: list[OperatorRow], vertices: list[VertexView]) -> str:
    if not rows:
        return "No subtask has reported yet."
    found = bottleneck(rows, vertices)
    uneven = skewed_now([subtask.load for row in rows for subtask in row.subtasks])
    if found is None and uneven:
        return uneven
    if found is None:
        busiest = max(rows, key=_busy).busiest
        return f"No operator holds others up; the busiest is {_named(busiest)}."
    held_up = f"{found.held_up.uid} is backpressured {percent(found.held_up.backpressured_ratio)}"
    if not found.is_busy:
        return (
            f"{held_up} of the time, and none of those that it sends to is busy: the busiest is"
            f" {_named(found.row.busiest)}. Look at the alignment of checkpoints and at what the"
            " sinks write to."
        )
    if not uneven and found.is_uneven:
        uneven = _uneven(found.row)
    return (
        f"{found.row.uid} is the bottleneck: {_named(found.row.busiest)}, and {held_up} on the way"
        f" to it. {uneven}"
    ).rstrip()


def _uneven(row: OperatorRow) -> str:
    return (
        f"Its work is unevenly spread: its subtasks are busy {percent(row.busy_ratio)} of the time"
        " on average."
    )


def _busy(row: OperatorRow) -> float:
    return row.busiest.busy_ratio


def _named(load: SubtaskLoad) -> str:
    return f"{load.vertex}[{load.subtask}], busy {percent(load.busy_ratio)} of the time"


def _downstream(uid: str, inputs: Mapping[str, list[str]]) -> set[str]:
    """All vertices that records of `uid` can reach; `inputs` is in topological order."""
    reached = {uid}
    for vertex, sources in inputs.items():
        if reached.intersection(sources):
            reached.add(vertex)
    return reached - {uid}


SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up")
OPERATORS_MAX = 25
"""As many as dashes and symbols can distinguish; the table below a chart has all of them."""

Trends = dict[str, list[VertexMoment]]
Value = float | None
Measured = Callable[[VertexMoment], tuple[Value, str]]
"""The drawn value of a moment, and its text for the hover label."""


def busy(trends: Trends) -> Figure | None:
    return share(trends, lambda each: each.busy_ratio)


def backpressured(trends: Trends) -> Figure | None:
    return share(trends, lambda each: each.backpressured_ratio)


def idle(trends: Trends) -> Figure | None:
    return share(trends, lambda each: each.idle_ratio)


def share(trends: Trends, ratio: Callable[[VertexMoment], float]) -> Figure | None:
    def measured(each: VertexMoment) -> tuple[Value, str]:
        return round(100 * ratio(each), 1), percent(ratio(each))

    return figure(trends, measured, "% of the time", range=[0, 100])


def records_in(trends: Trends) -> Figure | None:
    return figure(
        trends, lambda each: (each.records_in_per_s, rate(each.records_in_per_s)), "records/s"
    )


def watermarks(trends: Trends) -> Figure | None:
    def measured(each: VertexMoment) -> tuple[Value, str]:
        at = watermark_moment(each.watermark_ms)
        return moment(at), utc(at)

    return figure(trends, measured, "event time, UTC", type="date")


def figure(trends: Trends, measured: Measured, title: str, **more: object) -> Figure | None:
    names = list(trends)[:OPERATORS_MAX]
    lines = [_drawn(name, index, trends[name], measured) for index, name in enumerate(names)]
    drawn = [each for each in lines if each is not None]
    if not drawn:
        return None
    scale = {"rangemode": "tozero", "nticks": 5} | more
    return {
        "data": drawn,
        "layout": layout(
            240,
            showlegend=True,
            hovermode="closest",
            xaxis=time_axis(),
            yaxis=axis(title={"text": title, "standoff": 4}, **scale),
        ),
    }


def _drawn(name: str, index: int, moments: list[VertexMoment], measured: Measured) -> Json | None:
    return line(name, index, [each.at for each in moments], [measured(each) for each in moments])


def line(
    name: str, index: int, times: list[datetime], values: list[tuple[Value, str]]
) -> Json | None:
    """Breaks the line where the run was silent. Returns None if fewer than two values are known."""
    if sum(value is not None for value, _ in values) < LINE_POINTS_MIN:
        return None
    points: list[tuple[int | None, Value, str]] = [
        (moment(at), *value) for at, value in zip(times, values, strict=True)
    ]
    silence = silence_of(times)
    for later in reversed(range(1, len(times))):
        before = times[later - 1]
        if times[later] - before > silence:
            points.insert(later, (moment(before + silence), None, ""))
    return {
        "type": "scatter",
        "mode": "lines" if index < len(DASHES) else "lines+markers",
        "name": escaped(name),
        "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points],
        "customdata": [written for _, _, written in points],
        "hovertemplate": f"{template(name)}: %{{customdata}}<br>"
        f"{in_both_zones('%H:%M:%S')}<extra></extra>",
        "line": {"color": SERIES[index % 5], "dash": DASHES[index % 5], "width": 2},
        "marker": {"symbol": SYMBOLS[index // 5], "size": 6},
    }


def silence_of(times: list[datetime]) -> timedelta:
    """Returns the gap that counts as silence: decimated samples are more than a second apart."""
    gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
    return max(SILENCE, timedelta(seconds=3 * median(gaps)))


def template(name: str) -> str:
    """Breaks up `%{}` expressions, which Plotly would replace in a hover template."""
    return escaped(name).replace("%{", "% {")
