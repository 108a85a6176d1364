"""How a run's checkpoints have changed over time: a few figures of each, oldest first."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import QuerySet

from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus

TREND_MAX = 10_000
"""The newest of each kind."""


class TrendPoint(NamedTuple):
    """A completed checkpoint or savepoint. None: it did not say."""

    checkpoint_id: int
    at: datetime  # when it was triggered
    took_ms: float | None
    alignment_ms: float | None
    state_bytes: int | None
    uploaded_bytes: int | None
    buffered_bytes: int | None
    persisted_bytes: int | None


class FailedPoint(NamedTuple):
    checkpoint_id: int
    at: datetime
    failed_after_ms: float


@dataclass(frozen=True, slots=True)
class Trend:
    completed: list[TrendPoint]
    failed: list[FailedPoint]


def trend(run_id: str) -> Trend:
    rows = Checkpoint.objects.filter(run__run_id=run_id)
    completed = _newest(rows.filter(status__in=COMPLETE, checkpoint_id__isnull=False))
    failed = _newest(rows.filter(status=CheckpointStatus.FAILED, checkpoint_id__isnull=False))
    points = completed.values_list(
        "checkpoint_id",
        "trigger_at",
        "end_to_end_ms",
        "alignment_ms",
        "state_bytes",
        "uploaded_bytes",
        "buffered_bytes",
        "persisted_bytes",
    )
    ends = failed.values_list("checkpoint_id", "trigger_at", "failed_at")
    return Trend(
        completed=[
            TrendPoint(number or 0, at, took_ms, alignment_ms, state, uploaded, buffered, persisted)
            for number, at, took_ms, alignment_ms, state, uploaded, buffered, persisted in points
        ][::-1],
        failed=[
            FailedPoint(number or 0, at, ((failed_at or at) - at) / timedelta(milliseconds=1))
            for number, at, failed_at in ends
        ][::-1],
    )


def _newest(rows: QuerySet[Checkpoint]) -> QuerySet[Checkpoint]:
    return rows.order_by("-sequence")[:TREND_MAX]
