"""What Flink's checkpoint pages say about a run, and about one of its checkpoints.

Source: Flink, `CheckpointStatsSnapshot`. Of what was measured the newest 10,000 checkpoints count.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count, Max, Q, QuerySet, Sum

from ftdash.checkpoints.answers import CheckpointRow
from ftdash.checkpoints.counts import counts_of
from ftdash.checkpoints.distribution import Distribution, distribution
from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus, SubtaskPhase
from ftdash.checkpoints.queries import row_of
from ftdash.jobs.models import Recovery, Request, RequestKind, Run
from pipelines.domain.status import CheckpointKind, SavepointFormat

SUMMARY_MAX = 10_000
HISTORY_MAX = 10
"""Flink's `web.checkpoints.history`."""

_MEASURED = ("uploaded_bytes", "state_bytes", "end_to_end_ms", "buffered_bytes", "persisted_bytes")


@dataclass(frozen=True, slots=True)
class MeasuredCheckpoint:
    """A checkpoint, with what its subtasks have reported so far."""

    row: CheckpointRow
    failed_at: datetime | None
    last_acknowledged_ms: float | None  # after the trigger; None: nobody has, or it is forgotten
    acknowledged_state_bytes: int
    acknowledged_uploaded_bytes: int
    acknowledged_persisted_bytes: int
    is_unaligned: bool  # at least one subtask did not wait for its inputs
    savepoint_format: SavepointFormat | None  # None: no savepoint
    ends_run: bool  # a savepoint to stop with


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class CheckpointDistributions:
    """Over completed checkpoints and savepoints."""

    uploaded_bytes: Distribution
    state_bytes: Distribution
    end_to_end_ms: Distribution
    buffered_bytes: Distribution
    persisted_bytes: Distribution


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


class _Reported(NamedTuple):
    """What the subtasks of one checkpoint have reported, together."""

    last_ms: float | None
    state_bytes: int
    uploaded_bytes: int
    persisted_bytes: int
    unaligned_count: int


_NOTHING = _Reported(None, 0, 0, 0, 0)


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
    measured = _measured([*history, *(row for row in newest if row is not None)])
    completed, savepoint, failed = (measured[row.pk] if row else None for row in newest)
    return RunStatistics(
        counts=_counts(run),
        summary=_distributions(complete),
        completed=completed,
        savepoint=savepoint,
        failed=failed,
        restored=_restored(run),
        history=[measured[row.pk] for row in history],
    )


def measured_checkpoint(run_id: str, checkpoint_id: int) -> MeasuredCheckpoint | None:
    row = _with_ids(run_id).filter(checkpoint_id=checkpoint_id).first()
    return _measured([row])[row.pk] if row else None


def _with_ids(run_id: str) -> QuerySet[Checkpoint]:
    """Newest first, without those that were refused before they got an id."""
    rows = Checkpoint.objects.filter(run__run_id=run_id, checkpoint_id__isnull=False)
    return rows.select_related("run").order_by("-sequence")


def _counts(run: Run) -> CheckpointCounts:
    restored = Recovery.objects.filter(run=run, restored_checkpoint_id__isnull=False).count()
    if run.restored_from is not None and run.started_at is not None:
        restored += 1
    return CheckpointCounts(restored=restored, **asdict(counts_of(run.pk)))


def _distributions(complete: QuerySet[Checkpoint]) -> CheckpointDistributions:
    found = list(complete.values_list(*_MEASURED)[:SUMMARY_MAX])
    columns = zip(*found, strict=True) if found else ((),) * len(_MEASURED)
    known = [[value for value in column if value is not None] for column in columns]
    return CheckpointDistributions(
        **{name: distribution(values) for name, values in zip(_MEASURED, known, strict=True)}
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


def _measured(rows: list[Checkpoint]) -> dict[int, MeasuredCheckpoint]:
    reported = _reported(rows)
    wanted = [row.request_id for row in rows if row.request_id]
    asked = {each.request_id: each for each in Request.objects.filter(request_id__in=wanted)}
    return {
        row.pk: _one(row, reported.get(row.pk, _NOTHING), asked.get(row.request_id or ""))
        for row in rows
    }


def _reported(rows: list[Checkpoint]) -> dict[int, _Reported]:
    found = SubtaskPhase.objects.filter(checkpoint__in=rows).order_by().values("checkpoint")
    sums = found.annotate(
        last_ms=Max("acknowledged_ms"),
        state=Sum("state_bytes"),
        uploaded=Sum("uploaded_bytes"),
        persisted=Sum("persisted_bytes"),
        unaligned=Count("pk", filter=Q(is_unaligned=True)),
    )
    columns = ("checkpoint", "last_ms", "state", "uploaded", "persisted", "unaligned")
    return {key: _Reported(*values) for key, *values in sums.values_list(*columns)}


def _one(row: Checkpoint, reported: _Reported, asked: Request | None) -> MeasuredCheckpoint:
    savepoint_format = None
    if row.kind == CheckpointKind.SAVEPOINT.value:
        given = asked.parameters.get("type") if asked else None
        savepoint_format = SavepointFormat(given or SavepointFormat.CANONICAL)
    return MeasuredCheckpoint(
        row=row_of(row),
        failed_at=row.failed_at,
        last_acknowledged_ms=reported.last_ms,
        acknowledged_state_bytes=reported.state_bytes,
        acknowledged_uploaded_bytes=reported.uploaded_bytes,
        acknowledged_persisted_bytes=reported.persisted_bytes,
        is_unaligned=reported.unaligned_count > 0,
        savepoint_format=savepoint_format,
        ends_run=asked is not None and asked.kind == RequestKind.STOP_WITH_SAVEPOINT,
    )
