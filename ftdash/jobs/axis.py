"""Failures, recoveries and recovery points of one run, for one time axis."""

from datetime import datetime
from typing import TypeVar

from django.db.models import QuerySet
from django.utils import timezone

from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from ftdash.jobs.answers import (
    AxisPoint,
    FailureView,
    Notice,
    PhaseView,
    RecoveryAxis,
    RecoveryView,
    StatusView,
)
from ftdash.jobs.models import (
    Failure,
    JournalRow,
    Recovery,
    RestoreRefusal,
    Run,
    StatusChange,
    SupersededOutput,
    ZombieRefusal,
)
from ftdash.jobs.recovery_times import to_running_ms
from ftdash.times import moment

Row = TypeVar("Row", bound=JournalRow)

INCIDENTS_MAX = 200
"""Of each kind the newest are shown; the rows of the others stay."""


def recovery_axis(run_id: str, points_max: int = 500) -> RecoveryAxis | None:
    """Failures, recoveries and the newest `points_max` recovery points of one run."""
    run = Run.objects.filter(run_id=run_id).first()
    if run is None:
        return None
    return RecoveryAxis(
        run_id=run_id,
        from_at=run.started_at or run.created_at,
        to_at=run.ended_at or timezone.now(),
        points=_points(run, points_max),
        failures=[_failure(row, run_id) for row in _newest(Failure.objects.filter(run=run))],
        recoveries=[_recovery(row, run_id) for row in _newest(Recovery.objects.filter(run=run))],
        statuses=[
            StatusView(run_id, row.at, row.status, row.reason)
            for row in _newest(StatusChange.objects.filter(run=run))
        ],
        notices=_notices(run),
    )


def failures(run_id: str, limit: int) -> list[FailureView]:
    """The newest `limit` failures of one run, newest first."""
    rows = Failure.objects.filter(run__run_id=run_id).order_by("-sequence")[:limit]
    return [_failure(row, run_id) for row in rows]


def _points(run: Run, points_max: int) -> list[AxisPoint]:
    rows = Checkpoint.objects.filter(run=run, status__in=COMPLETE).order_by("-sequence")
    return [
        AxisPoint(
            run_id=run.run_id,
            checkpoint_id=row.checkpoint_id,
            kind=row.kind,
            at=row.completed_at,
            is_available=row.status == CheckpointStatus.COMPLETED,
            path=row.path,
        )
        for row in reversed(rows[:points_max])
        if row.checkpoint_id is not None and row.completed_at is not None
    ]


def _failure(row: Failure, run_id: str) -> FailureView:
    return FailureView(
        run_id=run_id,
        attempt=row.attempt,
        at=row.at,
        cause=row.cause,
        vertex=row.vertex,
        subtask=row.subtask,
        slot=row.slot,
        detail=row.detail,
    )


def _recovery(row: Recovery, run_id: str) -> RecoveryView:
    return RecoveryView(
        run_id=run_id,
        attempt=row.attempt,
        started_at=row.started_at,
        running_at=row.running_at,
        ended_at=row.ended_at,
        to_running_ms=to_running_ms(row),
        phases=[
            PhaseView(phase["phase"], phase["duration_ms"], moment(phase["at_ms"]))
            for phase in row.phases
        ],
        restored_checkpoint_id=row.restored_checkpoint_id,
        restored_path=row.restored_path,
        records_to_replay=row.records_to_replay,
    )


def _notices(run: Run) -> list[Notice]:
    notices = [
        *(
            Notice("restore_refused", run.run_id, row.attempt, row.at, row.message)
            for row in _newest(RestoreRefusal.objects.filter(run=run))
        ),
        *(
            Notice("zombie_refused", run.run_id, row.attempt, row.at, _zombie(row))
            for row in _newest(ZombieRefusal.objects.filter(run=run))
        ),
        *(
            Notice("output_superseded", run.run_id, row.attempt, row.at, _superseded(row))
            for row in _newest(SupersededOutput.objects.filter(run=run))
        ),
    ]
    return sorted(notices, key=_time)


def _zombie(row: ZombieRefusal) -> str:
    return f"Refused, because attempt {row.zombie_attempt} is over: {row.what}."


def _superseded(row: SupersededOutput) -> str:
    return (
        f"{row.files} outputs of the sink {row.sink} were written after the restored point and"
        f" were set aside in {row.moved_to}."
    )


def _time(notice: Notice) -> datetime:
    return notice.at


def _newest(rows: QuerySet[Row]) -> list[Row]:
    return list(reversed(rows.order_by("-sequence")[:INCIDENTS_MAX]))
