"""Decides which operator holds a dataflow up, and says so in a sentence. Pure.

Backpressure shows upstream of its cause. The cause is the busiest subtask among those that get the
records of a backpressured operator. Source: Flink, "Monitoring Back Pressure".
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ftdash.formats import percent
from ftdash.jobs.answers import VertexView
from ftdash.metrics.queries.loads import SubtaskLoad
from ftdash.ui.metrics.operator_rows import OperatorRow

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
        """False: it waits too, for something that is not an operator."""
        return self.row.busiest.busy_ratio >= BUSY_FROM

    @property
    def is_uneven(self) -> bool:
        return self.row.busiest.busy_ratio - self.row.busy_ratio >= UNEVEN_FROM


def bottleneck(rows: list[OperatorRow], vertices: list[VertexView]) -> Bottleneck | None:
    """`rows` are in topological order. None: nothing is backpressured."""
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
    uneven = f" {_uneven(found.row)}" if found.is_uneven else ""
    return (
        f"{found.row.uid} is the bottleneck: {_named(found.row.busiest)}, and {held_up} on the way"
        f" to it.{uneven}"
    )


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
