"""Figures of a run's checkpoints for monitors. Reads rows only."""

from dataclasses import dataclass
from datetime import datetime

from ftdash.checkpoints.models import COMPLETE, Checkpoint, SubtaskPhase
from ftdash.checkpoints.queries.counts import StatusCounts, counts_of, failure_counts


@dataclass(frozen=True, slots=True)
class SubtaskShare:
    """One subtask's part in the newest completed checkpoint."""

    start_delay_ms: float
    alignment_ms: float


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """The newest completed checkpoint. None: not reported."""

    checkpoint_id: int
    completed_at: datetime | None
    end_to_end_ms: float | None
    state_bytes: int | None
    uploaded_bytes: int | None
    buffered_records: int | None
    buffered_bytes: int | None
    persisted_bytes: int | None
    shares: dict[tuple[str, int], SubtaskShare]  # by vertex and subtask


@dataclass(frozen=True, slots=True)
class CheckpointMeasures:
    counts: StatusCounts
    failures: dict[str, int]  # by CheckpointFailureReason's name
    newest: NewestCheckpoint | None


def checkpoint_measures(run_pk: int) -> CheckpointMeasures:
    return CheckpointMeasures(
        counts=counts_of(run_pk),
        failures={each.reason_name: each.count for each in failure_counts(run_pk)},
        newest=_newest(run_pk),
    )


def _newest(run_pk: int) -> NewestCheckpoint | None:
    completed = Checkpoint.objects.filter(run=run_pk, status__in=COMPLETE)
    row = completed.order_by("-sequence").first()
    if row is None or row.checkpoint_id is None:
        return None
    return NewestCheckpoint(
        checkpoint_id=row.checkpoint_id,
        completed_at=row.completed_at,
        end_to_end_ms=row.end_to_end_ms,
        state_bytes=row.state_bytes,
        uploaded_bytes=row.uploaded_bytes,
        buffered_records=row.buffered_records,
        buffered_bytes=row.buffered_bytes,
        persisted_bytes=row.persisted_bytes,
        shares={
            (part.vertex, part.subtask): SubtaskShare(part.start_delay_ms, part.alignment_ms)
            for part in SubtaskPhase.objects.filter(checkpoint=row)
        },
    )
