"""Folds the incidents of a run into rows of their own: failures, recoveries, refusals, states.

Reads no journal and opens no transaction; `ftdash.projection.projector` hosts it, and calls it
before the fold of the run itself. If a driver has taken over, this fold needs the last report of
the driver before it.
"""

import msgspec
from django.db.models import Q

from ftdash.jobs.models import (
    DamageFinding,
    Failure,
    JournalRow,
    Leftover,
    PointsVerification,
    QuarantinedRecord,
    Recovery,
    RepeatedOutput,
    RestoreRefusal,
    Run,
    StatusChange,
    SupersededOutput,
    TargetTakeover,
    ZombieRefusal,
)
from ftdash.times import moment
from pipelines.domain.errors import FailureKind
from pipelines.domain.events import (
    DamageRemembered,
    DriverReplaced,
    Envelope,
    FailureOccurred,
    JobStatusChanged,
    LeftoversDiscarded,
    LeftoversKept,
    OutputPublishedAgain,
    OutputSuperseded,
    PointsVerified,
    RecordQuarantined,
    RecoveryPhaseReached,
    RestorePointRefused,
    RunStarted,
    TargetTakenOver,
    ZombieRefused,
)
from pipelines.domain.status import RecoveryPhase

JOURNAL_ROWS: tuple[type[JournalRow], ...] = (
    DamageFinding,
    Failure,
    Leftover,
    PointsVerification,
    QuarantinedRecord,
    Recovery,
    RepeatedOutput,
    RestoreRefusal,
    StatusChange,
    SupersededOutput,
    TargetTakeover,
    ZombieRefusal,
)
_ALWAYS_REACHED = set(RecoveryPhase) - {RecoveryPhase.BACKOFF}
"""Journals of older versions count the backoff as a part of STOP."""

_OF_FAILURE = (
    "cause",
    "vertex",
    "subtask",
    "slot",
    "detail",
    "operator",
    "author_trace",
    "record",
    "kind",
)
_OF_DAMAGE = ("files", "points", "mended", "message")
_OF_VERIFICATION = ("whole", "damaged", "not_counted", "duration_ms")
_OF_REPEAT = ("sink", "target", "records", "is_at_most")
_OF_LEFTOVER = ("sink", "target", "what", "count", "run_count")
_OF_TAKEOVER = ("sink", "target", "from_run", "from_installation", "epoch")
_OF_RECORD = ("source", "split", "offset", "operator", "error_type", "error")


class IncidentFold:
    """One batch of one run. Nothing is written before `save`, except a recovery that is over."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._new: list[JournalRow] = []
        self._recovery = Recovery.objects.filter(run=run).order_by("sequence").last()
        self._recovery_changed = False

    def on(self, envelope: Envelope) -> None:
        match envelope.event:
            case RunStarted(driver_pid=driver_pid):
                self._on_started(envelope, driver_pid)
            case JobStatusChanged(status=status, reason=reason):
                self._add(StatusChange(status=status.value, reason=reason), envelope)
            case FailureOccurred() as event:
                failure = {name: getattr(event, name) for name in _OF_FAILURE}
                origin = msgspec.to_builtins(event.origin)
                self._add(Failure(**failure, origin=origin), envelope)
            case DriverReplaced(reason=reason):
                self._add(Failure(cause=reason, kind=FailureKind.DRIVER_LOST), envelope)
            case RecoveryPhaseReached() as event:
                self._on_recovery_phase(envelope, event)
            case RestorePointRefused(path=path, message=message, kind=kind):
                self._add(RestoreRefusal(path=path, message=message, kind=kind.value), envelope)
            case DamageRemembered(found_by=finder, remembered=remembered) as event:
                found = {name: getattr(event, name) for name in _OF_DAMAGE}
                known = {"found_by": finder.value, "remembered_count": len(remembered)}
                self._add(DamageFinding(**found, **known), envelope)
            case PointsVerified() as event:
                verified = {name: getattr(event, name) for name in _OF_VERIFICATION}
                self._add(PointsVerification(**verified), envelope)
            case ZombieRefused(zombie_attempt=zombie, what=what):
                self._add(ZombieRefusal(zombie_attempt=zombie, what=what), envelope)
            case OutputSuperseded(sink=sink, files=files, moved_to=moved_to):
                row = SupersededOutput(sink=sink, files=files, moved_to=moved_to)
                self._add(row, envelope)
            case OutputPublishedAgain() as event:
                repeat = {name: getattr(event, name) for name in _OF_REPEAT}
                self._add(RepeatedOutput(**repeat), envelope)
            case LeftoversDiscarded() | LeftoversKept() as event:
                self._add(_leftover(event), envelope)
            case TargetTakenOver() as event:
                taken = {name: getattr(event, name) for name in _OF_TAKEOVER}
                self._add(TargetTakeover(**taken), envelope)
            case RecordQuarantined(record=record, directory=directory, limit=limit):
                columns = {name: getattr(record, name) for name in _OF_RECORD}
                kept = QuarantinedRecord(**columns, directory=directory, limit=limit)
                self._add(kept, envelope)

    def save(self) -> None:
        for kind in JOURNAL_ROWS:
            kind._default_manager.bulk_create([row for row in self._new if type(row) is kind])
        if self._recovery is not None and self._recovery_changed:
            self._recovery.save()

    def _on_started(self, envelope: Envelope, driver_pid: int) -> None:
        run = self._run
        if run.started_at is None:
            return
        run.driver_lost_at = run.last_event_at
        gone = f"The driver (pid {run.driver_pid}) is gone; process {driver_pid} has taken over."
        self._add(Failure(cause=gone, kind=FailureKind.DRIVER_LOST), envelope)

    def _on_recovery_phase(self, envelope: Envelope, event: RecoveryPhaseReached) -> None:
        """A recovery begins with the phase DETECT, still under the number of the failed attempt.

        After the death of a driver it begins with that driver's last report, from which the new one
        has counted.
        """
        at = moment(envelope.at_ms)
        if event.phase is RecoveryPhase.DETECT or self._recovery is None:
            if self._recovery is not None and self._recovery_changed:
                self._recovery.save()
            self._recovery = Recovery(run=self._run, sequence=envelope.sequence)
            self._recovery.at = self._recovery.started_at = self._run.driver_lost_at or at
            self._run.driver_lost_at = None
        recovery = self._recovery
        recovery.attempt = envelope.attempt
        recovery.phases = [
            *recovery.phases,
            {
                "phase": event.phase.value,
                "duration_ms": event.duration_ms,
                "at_ms": envelope.at_ms,
            },
        ]
        if event.phase is RecoveryPhase.DECIDE:
            recovery.restored_checkpoint_id = event.restored_checkpoint_id
            recovery.restored_path = event.restored_path
            recovery.records_to_replay = event.records_to_replay
        if event.phase is RecoveryPhase.RESTORE:
            recovery.running_at = at
        if {phase["phase"] for phase in recovery.phases} >= _ALWAYS_REACHED:
            recovery.ended_at = at
        self._recovery_changed = True

    def _add(self, row: JournalRow, envelope: Envelope) -> None:
        row.run = self._run
        row.sequence = envelope.sequence
        row.attempt = envelope.attempt
        row.at = moment(envelope.at_ms)
        self._new.append(row)


def _leftover(event: LeftoversDiscarded | LeftoversKept) -> Leftover:
    columns = {name: getattr(event, name) for name in _OF_LEFTOVER}
    row = Leftover(**columns, runs=list(event.runs))
    match event:
        case LeftoversDiscarded(size_bytes=size_bytes):
            row.size_bytes = size_bytes
        case LeftoversKept(why=why):
            row.why_kept = why
    return row


def forget(run: Run, rows: Q) -> None:
    """Deletes rows folded from these lines of the journal, so that they can be folded again."""
    for kind in JOURNAL_ROWS:
        kind._default_manager.filter(rows, run=run).delete()
