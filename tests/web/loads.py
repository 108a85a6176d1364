"""Hand-made loads of subtasks, for tests of the sentences and charts about them."""

from datetime import UTC, datetime
from typing import Any

from ftdash.jobs.answers import VertexView
from ftdash.metrics.queries.loads import RunLoads, SubtaskLoad

GRAPH = [
    VertexView("source", ["source"], [], is_source=True, is_sink=False),
    VertexView("other", ["other"], [], is_source=True, is_sink=False),
    VertexView("middle", ["middle"], ["source"], is_source=False, is_sink=False),
    VertexView("sink", ["sink"], ["middle", "other"], is_source=False, is_sink=True),
]


def load(vertex: str, subtask: int = 0, **values: Any) -> SubtaskLoad:
    plain: dict[str, Any] = {
        "busy_ratio": 0.0,
        "backpressured_ratio": 0.0,
        "idle_ratio": 0.0,
        "busy_ms": None,
        "backpressured_ms": None,
        "idle_ms": None,
        "records_in": 0,
        "records_out": 0,
        "records_in_per_s": None,
        "records_out_per_s": None,
        "watermark_ms": None,
        "queued_records": 0,
        "queued_bytes": 0,
        "state_bytes": 0,
    }
    return SubtaskLoad(vertex=vertex, subtask=subtask, **plain | values)


def loads(*subtasks: SubtaskLoad) -> RunLoads:
    return RunLoads(datetime(2026, 11, 21, tzinfo=UTC), 1, {}, list(subtasks))
