"""How a run's checkpoints changed over time: a few figures of each, oldest first."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.checkpoints.queries.completed_history import CompletedHistory, completed_history

FAILED_MAX = 1_000
"""How many failed ones are shown, the newest."""


class FailedPoint(NamedTuple):
    checkpoint_id: int
    at: datetime  # when it was triggered
    failed_after_ms: float


@dataclass(frozen=True, slots=True)
class Trend:
    completed: CompletedHistory
    failed: list[FailedPoint]


def trend(run_id: str) -> Trend:
    rows = Checkpoint.objects.filter(run__run_id=run_id, status=CheckpointStatus.FAILED)
    failed = rows.filter(checkpoint_id__isnull=False).order_by("-sequence")[:FAILED_MAX]
    return Trend(
        completed=completed_history(run_id),
        failed=[
            FailedPoint(number or 0, at, ((failed_at or at) - at) / timedelta(milliseconds=1))
            for number, at, failed_at in failed.values_list(
                "checkpoint_id", "trigger_at", "failed_at"
            )
        ][::-1],
    )
