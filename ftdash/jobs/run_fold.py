"""Folds events into the rows of one run: its state, requests, failures and recoveries.

Reads no journal and opens no transaction; `ftdash.jobs.projector` hosts it.
"""

from datetime import datetime, timedelta

import msgspec
from django.db import models
from django.db.models import F

from ftdash.jobs.models import (
    OPEN_PHASES,
    Failure,
    JournalRow,
    PointsVerification,
    QuarantinedRecord,
    Recovery,
    Request,
    RequestKind,
    RequestPhase,
    RestoreRefusal,
    Run,
    StatusChange,
    SupersededOutput,
    ZombieRefusal,
)
from ftdash.times import moment, moment_or_none
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointTriggered,
    Envelope,
    FailureOccurred,
    JobStatusChanged,
    MetricsSampled,
    OutputSuperseded,
    PointsVerified,
    RecordQuarantined,
    RecoveryPhaseReached,
    RequestAccepted,
    RequestEnded,
    RestorePointRefused,
    RunEnded,
    RunStarted,
    SettingsChanged,
    SlotConnected,
    SlotLost,
    ZombieRefused,
)
from pipelines.domain.ids import RequestId
from pipelines.domain.status import JobStatus, RecoveryPhase

STARTS = (RequestKind.SUBMIT, RequestKind.RESTORE)
UNACCEPTED = (RequestPhase.PENDING, RequestPhase.DELIVERED)
JOURNAL_ROWS: tuple[type[JournalRow], ...] = (
    Failure,
    PointsVerification,
    QuarantinedRecord,
    Recovery,
    RestoreRefusal,
    StatusChange,
    SupersededOutput,
    ZombieRefusal,
)
PROJECTED = (
    "status",
    "reason",
    "attempt",
    "guarantee",
    "guarantee_reason",
    "changed_settings",
    "vertices",
    "slots",
    "driver_pid",
    "driver_lost_at",
    "started_at",
    "ended_at",
    "last_event_at",
    "last_checkpoint_id",
    "last_completed_at",
    "last_committed_at",
    "records_per_s",
    "watermark_ms",
    "counters",
    "restart_count",
    "journal_offset",
    "last_sequence",
    "projection_error",
)
"""The columns of a run that are the projector's."""
_OF_FAILURE = ("cause", "vertex", "subtask", "slot", "detail", "operator")
_OF_RECORD = ("source", "split", "offset", "operator", "error_type", "error")


class RunFold:
    """One batch of one run; changes `run` in memory. Requests are written as they are met."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._new: list[JournalRow] = []
        self._recovery = Recovery.objects.filter(run=run).order_by("sequence").last()
        self._recovery_changed = False

    def on(self, envelope: Envelope) -> None:
        run, at = self.run, moment(envelope.at_ms)
        match envelope.event:
            case RunStarted() as event:
                self._on_started(envelope, event)
            case JobStatusChanged() as event:
                self._on_status(envelope, event)
            case SlotConnected(slot=slot, pid=pid, host=host):
                run.slots[str(slot)] = {"pid": pid, "host": host}
            case SlotLost(slot=slot):
                run.slots.pop(str(slot), None)
            case CheckpointTriggered(request_id=request_id, checkpoint_id=checkpoint_id):
                if request_id is not None:
                    self._requests(request_id).update(checkpoint_id=checkpoint_id)
            case CheckpointCompleted(checkpoint_id=checkpoint_id):
                run.last_checkpoint_id = checkpoint_id
                run.last_completed_at = at
            case CheckpointCommitted():
                run.last_committed_at = at
            case RequestAccepted(request_id=request_id):
                self._requests(request_id).filter(phase__in=UNACCEPTED).update(
                    phase=RequestPhase.ACCEPTED, accepted_at=at
                )
            case RequestEnded() as event:
                self._end(
                    self._requests(event.request_id),
                    RequestPhase(event.outcome.value),
                    event.message,
                    at,
                    path=event.path,
                )
            case MetricsSampled() as event:
                self._on_sample(event)
            case SettingsChanged(settings=settings):
                run.changed_settings = settings
            case RunEnded() as event:
                self._on_ended(at, event)
            case _:
                self._on_incident(envelope)
        run.attempt = max(run.attempt, envelope.attempt)
        run.restart_count = max(0, run.attempt - 1)
        run.last_event_at = at
        run.last_sequence = envelope.sequence

    def save(self) -> None:
        for kind in JOURNAL_ROWS:
            kind._default_manager.bulk_create([row for row in self._new if type(row) is kind])
        if self._recovery is not None and self._recovery_changed:
            self._recovery.save()
        columns = {name: getattr(self.run, name) for name in PROJECTED}
        Run.objects.filter(pk=self.run.pk).update(**columns, version=F("version") + 1)

    def _on_started(self, envelope: Envelope, event: RunStarted) -> None:
        run, at = self.run, moment(envelope.at_ms)
        if run.started_at is not None:
            run.driver_lost_at = run.last_event_at
            self._add(
                Failure(
                    cause=f"The driver (pid {run.driver_pid}) is gone; process {event.driver_pid}"
                    " has taken over."
                ),
                envelope,
            )
        self._starting_requests().filter(phase__in=UNACCEPTED).update(
            phase=RequestPhase.ACCEPTED, accepted_at=at
        )
        run.started_at = run.started_at or at
        run.guarantee = event.guarantee
        run.guarantee_reason = event.guarantee_reason
        run.vertices = msgspec.to_builtins(event.vertices)
        run.driver_pid = event.driver_pid
        run.slots = {}
        run.records_per_s = 0.0

    def _on_status(self, envelope: Envelope, event: JobStatusChanged) -> None:
        run, at = self.run, moment(envelope.at_ms)
        run.status = event.status.value
        run.reason = event.reason
        self._add(StatusChange(status=event.status.value, reason=event.reason), envelope)
        if event.status is JobStatus.RUNNING:
            text = "The pipeline is running."
            self._end(self._starting_requests(), RequestPhase.SUCCEEDED, text, at)
        elif event.status is not JobStatus.INITIALIZING:
            run.slots = {}
            run.records_per_s = 0.0

    def _on_sample(self, event: MetricsSampled) -> None:
        run = self.run
        run.records_per_s = event.records_per_s
        run.counters = event.counters
        run.last_committed_at = moment_or_none(event.last_committed_ms) or run.last_committed_at
        watermarks = [each.watermark_ms for each in event.subtasks]
        known = [watermark for watermark in watermarks if watermark is not None]
        run.watermark_ms = min(known) if known else run.watermark_ms

    def _on_ended(self, at: datetime, event: RunEnded) -> None:
        run = self.run
        run.status = event.status.value
        run.reason = event.reason
        run.ended_at = at
        run.driver_pid = None
        run.slots = {}
        run.records_per_s = 0.0
        has_failed = event.status is JobStatus.FAILED
        outcome = RequestPhase.FAILED if has_failed else RequestPhase.SUCCEEDED
        self._end(self._starting_requests(), outcome, event.reason, at)
        others = Request.objects.filter(run=run)
        if event.status is JobStatus.CANCELED:
            cancels = others.filter(kind=RequestKind.CANCEL)
            self._end(cancels, RequestPhase.SUCCEEDED, event.reason, at)
        self._end(others, RequestPhase.FAILED, f"The run ended first: {event.reason}", at)

    def _on_incident(self, envelope: Envelope) -> None:
        match envelope.event:
            case FailureOccurred() as event:
                failure = {name: getattr(event, name) for name in _OF_FAILURE}
                origin = msgspec.to_builtins(event.origin)
                self._add(Failure(**failure, origin=origin), envelope)
            case RecoveryPhaseReached() as event:
                self._on_recovery_phase(envelope, event)
            case RestorePointRefused(path=path, message=message):
                self._add(RestoreRefusal(path=path, message=message), envelope)
            case PointsVerified(whole=whole, damaged=damaged, duration_ms=duration_ms):
                verified = PointsVerification(whole=whole, damaged=damaged, duration_ms=duration_ms)
                self._add(verified, envelope)
            case ZombieRefused(zombie_attempt=zombie, what=what):
                self._add(ZombieRefusal(zombie_attempt=zombie, what=what), envelope)
            case OutputSuperseded(sink=sink, files=files, moved_to=moved_to):
                row = SupersededOutput(sink=sink, files=files, moved_to=moved_to)
                self._add(row, envelope)
            case RecordQuarantined(record=record, directory=directory, limit=limit):
                columns = {name: getattr(record, name) for name in _OF_RECORD}
                kept = QuarantinedRecord(**columns, directory=directory, limit=limit)
                self._add(kept, envelope)

    def _on_recovery_phase(self, envelope: Envelope, event: RecoveryPhaseReached) -> None:
        """A recovery begins with the phase DETECT, still under the number of what failed.

        A new driver cannot know when its predecessor died; the predecessor's last event tells.
        """
        at, duration_ms = moment(envelope.at_ms), event.duration_ms
        if event.phase is RecoveryPhase.DETECT or self._recovery is None:
            if self._recovery is not None and self._recovery_changed:
                self._recovery.save()
            self._recovery = Recovery(run=self.run, sequence=envelope.sequence)
            self._recovery.at = self._recovery.started_at = self.run.driver_lost_at or at
            silent_ms = (at - self._recovery.started_at) / timedelta(milliseconds=1)
            duration_ms += max(0.0, silent_ms)  # the clock may have been set back meanwhile
            self.run.driver_lost_at = None
        recovery = self._recovery
        recovery.attempt = envelope.attempt
        recovery.phases = [
            *recovery.phases,
            {
                "phase": event.phase.value,
                "duration_ms": duration_ms,
                "at_ms": envelope.at_ms,
            },
        ]
        if event.phase is RecoveryPhase.DECIDE:
            recovery.restored_checkpoint_id = event.restored_checkpoint_id
            recovery.restored_path = event.restored_path
            recovery.records_to_replay = event.records_to_replay
        if event.phase is RecoveryPhase.RESTORE:
            recovery.running_at = at
        if {phase["phase"] for phase in recovery.phases} >= set(RecoveryPhase):
            recovery.ended_at = at
        self._recovery_changed = True

    def _add(self, row: JournalRow, envelope: Envelope) -> None:
        row.run = self.run
        row.sequence = envelope.sequence
        row.attempt = envelope.attempt
        row.at = moment(envelope.at_ms)
        self._new.append(row)

    def _requests(self, request_id: RequestId) -> models.QuerySet[Request]:
        return Request.objects.filter(request_id=request_id, run=self.run)

    def _starting_requests(self) -> models.QuerySet[Request]:
        return Request.objects.filter(run=self.run, kind__in=STARTS)

    def _end(
        self,
        requests: models.QuerySet[Request],
        phase: RequestPhase,
        message: str,
        at: datetime,
        path: str | None = None,
    ) -> None:
        """Only open requests: the terminal phase of a request is one, and the first."""
        requests.filter(phase__in=OPEN_PHASES).update(
            phase=phase, message=message, path=path, ended_at=at
        )


def forget(run: Run) -> None:
    """Delete what was folded from the run's journal, so that it can be folded again.

    The status stays until the fold is over: the database allows one live run per pipeline.
    """
    for kind in JOURNAL_ROWS:
        kind._default_manager.filter(run=run).delete()
    blank = Run()
    for name in PROJECTED:
        if name != "status":
            setattr(run, name, getattr(blank, name))
