"""The statistics of a run on Flink's checkpoint pages.

Source: Flink, `CheckpointStatsSnapshot`.

Figures of a run's checkpoints for monitors. Reads rows only.
"""

from dataclasses import asdict, dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from ftdash.checkpoints.distribution import Distribution, distribution
from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus, SubtaskPhase
from ftdash.checkpoints.queries.completed_history import FIGURES, completed_history, known_of
from ftdash.checkpoints.queries.counts import FailureCount, StatusCounts, counts_of, failure_counts
from ftdash.checkpoints.queries.measured import MeasuredCheckpoint, measured
from ftdash.history.limits import ever
from ftdash.history.models import Counted
from ftdash.jobs.models import Recovery, Run
from pipelines.domain.status import CheckpointKind

HISTORY_MAX = 10
"""Flink's `web.checkpoints.history`."""


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class CheckpointDistributions:
    """Over the newest completed checkpoints and savepoints."""

    uploaded_bytes: Distribution
    state_bytes: Distribution
    end_to_end_ms: Distribution
    buffered_bytes: Distribution
    persisted_bytes: Distribution
    alignment_ms: Distribution  # of the subtask of each that aligned longest


@dataclass(frozen=True, slots=True)
class Restored:
    """The newest restore of a run."""

    checkpoint_id: int
    at: datetime
    is_savepoint: bool
    path: str | None


@dataclass(frozen=True, slots=True)
class RunStatistics:
    counts: CheckpointCounts
    summary: CheckpointDistributions
    completed: MeasuredCheckpoint | None  # the newest that is no savepoint
    savepoint: MeasuredCheckpoint | None
    failed: MeasuredCheckpoint | None
    restored: Restored | None
    history: list[MeasuredCheckpoint]  # the newest, newest first
    failures: list[FailureCount]  # the most frequent reason first


def statistics_of(run_id: str) -> RunStatistics | None:
    """None: no such run."""
    run = Run.objects.filter(run_id=run_id).first()
    if run is None:
        return None
    rows = _with_ids(run_id)
    complete = rows.filter(status__in=COMPLETE)
    savepoints = Q(kind=CheckpointKind.SAVEPOINT.value)
    newest = [
        complete.exclude(savepoints).first(),
        complete.filter(savepoints).first(),
        rows.filter(status=CheckpointStatus.FAILED).first(),
    ]
    history = list(rows[:HISTORY_MAX])
    known = measured([*history, *(row for row in newest if row is not None)])
    completed, savepoint, failed = (known[row.pk] if row else None for row in newest)
    return RunStatistics(
        counts=_counts(run),
        summary=_summary(run_id),
        completed=completed,
        savepoint=savepoint,
        failed=failed,
        restored=_restored(run),
        history=[known[row.pk] for row in history],
        failures=failure_counts(run.pk),
    )


def _with_ids(run_id: str) -> QuerySet[Checkpoint]:
    """Newest first, without those that were refused before they got an id."""
    rows = Checkpoint.objects.filter(run__run_id=run_id, checkpoint_id__isnull=False)
    return rows.select_related("run").order_by("-sequence")


def _counts(run: Run) -> CheckpointCounts:
    recoveries = Recovery.objects.filter(run=run, restored_checkpoint_id__isnull=False)
    restored = ever(recoveries, Counted.RESTORED, run.pk)
    if run.restored_from is not None and run.started_at is not None:
        restored += 1
    return CheckpointCounts(restored=restored, **asdict(counts_of(run.pk)))


def _summary(run_id: str) -> CheckpointDistributions:
    history = completed_history(run_id)
    columns = {name: getattr(history, name) for name in FIGURES}
    return CheckpointDistributions(
        **{name: distribution(known_of(column).tolist()) for name, column in columns.items()}
    )


def _restored(run: Run) -> Restored | None:
    recovery = (
        Recovery.objects.filter(run=run, restored_checkpoint_id__isnull=False)
        .order_by("-sequence")
        .first()
    )
    if recovery is not None:
        return _restored_from(recovery.restored_checkpoint_id, recovery.at, recovery.restored_path)
    return _restored_from(run.first_checkpoint_id - 1, run.started_at, run.restored_from)


def _restored_from(
    checkpoint_id: int | None, at: datetime | None, path: str | None
) -> Restored | None:
    if checkpoint_id is None or at is None or path is None:
        return None
    point = Checkpoint.objects.filter(path=path).first()
    is_savepoint = point is not None and point.kind == CheckpointKind.SAVEPOINT.value
    return Restored(checkpoint_id, at, is_savepoint, path)


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
