"""The operators of a run as rows of a table: means, sums and least values of their subtasks. Pure.

`bottleneck` decides what holds them up.
"""

from dataclasses import dataclass
from datetime import datetime

from ftdash.jobs.answers import RunView, ShownState, VertexView
from ftdash.metrics.queries.loads import (
    RunLoads,
    SubtaskLoad,
    by_vertex,
    least_watermark_ms,
    sum_known,
)
from ftdash.times import watermark_moment


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
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    queued_records: int
    queued_bytes: int
    state_bytes: int
    watermark_at: datetime | None
    subtasks: list[SubtaskRow]
    pending_records: int | None  # for a source: waiting to be read
    queued_ms: int | None  # of the subtask that takes longest to consume what is queued
    window_bytes: int | None  # of the channel that may hold most


def operator_rows(vertices: list[VertexView], loads: RunLoads | None) -> list[OperatorRow]:
    """In topological order; only those that have reported."""
    reported = by_vertex(loads.subtasks) if loads else {}
    return [
        _row(vertex, sorted(reported[vertex.uid], key=lambda load: load.subtask))
        for vertex in vertices
        if vertex.uid in reported
    ]


def is_past(run: RunView | None, loads: RunLoads | None) -> bool:
    """True if the shown values are former ones: the present ones are unknown, or nothing runs."""
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
