"""The operators of a run as rows of a table, and what holds them up in a sentence. Pure.

Backpressure is seen upstream of what causes it: the one to look at is the busiest subtask of those
that records of a backpressured operator go to. Source: Flink, "Monitoring Back Pressure".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ftdash.jobs.answers import VertexView
from ftdash.metrics.loads import (
    RunLoads,
    SubtaskLoad,
    by_vertex,
    least_watermark_ms,
    sum_known,
)
from ftdash.times import watermark_moment
from ftdash.ui.formats import percent

BACKPRESSURED_FROM = 0.1
"""Flink calls less than this OK."""


@dataclass(frozen=True, slots=True)
class SubtaskRow:
    load: SubtaskLoad

    @property
    def watermark_at(self) -> datetime | None:
        return watermark_moment(self.load.watermark_ms)


@dataclass(frozen=True, slots=True)
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
    queued_records: int
    queued_bytes: int
    state_bytes: int
    watermark_at: datetime | None
    subtasks: list[SubtaskRow]


def operator_rows(vertices: list[VertexView], loads: RunLoads | None) -> list[OperatorRow]:
    """In topological order; only those that reported."""
    reported = by_vertex(loads.subtasks) if loads else {}
    return [
        _row(vertex, sorted(reported[vertex.uid], key=lambda load: load.subtask))
        for vertex in vertices
        if vertex.uid in reported
    ]


def sentence(rows: list[OperatorRow], vertices: list[VertexView]) -> str:
    if not rows:
        return "No subtask has reported yet."
    inputs = {vertex.uid: vertex.inputs for vertex in vertices}
    held_up = [row for row in rows if row.backpressured_ratio >= BACKPRESSURED_FROM]
    for row in reversed(held_up):  # what comes after the last one of them takes no more
        behind = _downstream(row.uid, inputs)
        suspects = [each for each in rows if each.uid in behind]
        if suspects:
            return (
                f"{row.uid} is backpressured {percent(row.backpressured_ratio)} of the time; the"
                f" busiest of those that it sends to is {_named(_busiest(suspects))}."
            )
    return f"Nothing is backpressured; the busiest is {_named(_busiest(rows))}."


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
        queued_records=sum(load.queued_records for load in loads),
        queued_bytes=sum(load.queued_bytes for load in loads),
        state_bytes=sum(load.state_bytes for load in loads),
        watermark_at=watermark_moment(least_watermark_ms(loads)),
        subtasks=[SubtaskRow(load) for load in loads],
    )


def _busiest(rows: list[OperatorRow]) -> SubtaskLoad:
    return max((row.busiest for row in rows), key=lambda load: load.busy_ratio)


def _named(load: SubtaskLoad) -> str:
    return f"{load.vertex}[{load.subtask}], busy {percent(load.busy_ratio)} of the time"


def _downstream(uid: str, inputs: Mapping[str, list[str]]) -> set[str]:
    """All that records of `uid` can come to; `inputs` is in topological order."""
    reached = {uid}
    for vertex, sources in inputs.items():
        if reached.intersection(sources):
            reached.add(vertex)
    return reached - {uid}
