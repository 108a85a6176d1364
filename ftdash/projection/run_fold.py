"""Folds events into the row of one run and those of its requests.

`incident_fold` folds the incidents of the run into rows of their own. Reads no journal and opens no
transaction; `ftdash.projection.projector` hosts it.
"""

from datetime import datetime

import msgspec
from django.db import models
from django.db.models import F

from ftdash.jobs.models import (
    OPEN_PHASES,
    Request,
    RequestPhase,
    Run,
)
from ftdash.times import moment, moment_or_none
from pipelines.domain.commands import STARTS, Cancel, UndoStart
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointTriggered,
    DriverReplaced,
    Envelope,
    JobStatusChanged,
    LedgerBegun,
    MetricsSampled,
    RequestAccepted,
    RequestEnded,
    RestartScheduled,
    RunEnded,
    RunStarted,
    SettingsChanged,
    SlotConnected,
    SlotLost,
    StartUndone,
)
from pipelines.domain.ids import RequestId
from pipelines.domain.status import JobStatus

UNACCEPTED = (RequestPhase.PENDING, RequestPhase.DELIVERED)
PROJECTED = (
    "status",
    "reason",
    "attempt",
    "guarantee",
    "guarantee_reason",
    "changed_settings",
    "vertices",
    "transaction_timeouts_ms",
    "start_undone",
    "input_gaps",
    "slots",
    "driver_pid",
    "driver_lost_at",
    "started_at",
    "ended_at",
    "last_event_at",
    "clock_behind_s",
    "last_checkpoint_id",
    "last_completed_at",
    "last_committed_at",
    "records_per_s",
    "reached_records",
    "restored_records",
    "restoring",
    "restart_at",
    "next_restart_delay_ms",
    "watermark_ms",
    "counters",
    "restart_count",
    "journal_offset",
    "last_sequence",
    "projection_error",
    "journal_gap",
)
"""The columns of a run that belong to the projector."""


class RunFold:
    """One batch of one run; changes `run` in memory. It writes requests at once."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on(self, envelope: Envelope) -> None:
        run, at = self.run, moment(envelope.at_ms)
        match envelope.event:
            case RunStarted() as event:
                self._on_started(at, event)
            case JobStatusChanged() as event:
                self._on_status(at, event)
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
            case RestartScheduled(at_ms=at_ms):
                run.restart_at = moment(at_ms)
            case LedgerBegun(gaps=gaps):
                run.input_gaps = msgspec.to_builtins(gaps)
            case StartUndone():
                run.start_undone = True
            case SettingsChanged(settings=settings):
                run.changed_settings = settings
            case DriverReplaced():
                run.slots = {}
                run.records_per_s = 0.0
            case RunEnded() as event:
                self._on_ended(at, event)
        run.attempt = max(run.attempt, envelope.attempt)
        run.restart_count = max(0, run.attempt - 1)
        if not isinstance(envelope.event, DriverReplaced):  # which no driver said
            run.last_event_at = at
        run.last_sequence = envelope.sequence

    def save(self) -> None:
        columns = {name: getattr(self.run, name) for name in PROJECTED}
        Run.objects.filter(pk=self.run.pk).update(**columns, version=F("version") + 1)

    def _on_started(self, at: datetime, event: RunStarted) -> None:
        run = self.run
        self._starting_requests().filter(phase__in=UNACCEPTED).update(
            phase=RequestPhase.ACCEPTED, accepted_at=at
        )
        run.started_at = run.started_at or at
        run.guarantee = event.guarantee
        run.guarantee_reason = event.guarantee_reason
        run.vertices = msgspec.to_builtins(event.vertices)
        run.transaction_timeouts_ms = event.transaction_timeouts_ms
        run.driver_pid = event.driver_pid
        run.slots = {}
        run.records_per_s = 0.0
        run.restoring = run.restart_at = None

    def _on_status(self, at: datetime, event: JobStatusChanged) -> None:
        run = self.run
        run.status = event.status.value
        run.reason = event.reason
        run.restoring = run.restart_at = None
        if event.status is JobStatus.RUNNING:
            text = "The pipeline is running."
            self._end(self._starting_requests(), RequestPhase.SUCCEEDED, text, at)
        elif event.status is not JobStatus.INITIALIZING:
            run.slots = {}
            run.records_per_s = 0.0

    def _on_sample(self, event: MetricsSampled) -> None:
        run = self.run
        mean = event.mean_records_per_s
        run.records_per_s = event.records_per_s if mean is None else mean
        run.reached_records = event.reached_records
        run.restored_records = event.restored_records
        run.restoring = msgspec.to_builtins(event.restoring)
        run.next_restart_delay_ms = event.next_restart_delay_ms
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
        run.restoring = run.restart_at = None
        has_failed = event.status is JobStatus.FAILED
        outcome = RequestPhase.FAILED if has_failed else RequestPhase.SUCCEEDED
        self._end(self._starting_requests(), outcome, event.reason, at)
        others = Request.objects.filter(run=run)
        if event.status is JobStatus.CANCELED:
            cancels = others.filter(kind=Cancel.kind)
            self._end(cancels, RequestPhase.SUCCEEDED, event.reason, at)
        if run.start_undone:
            undos = others.filter(kind=UndoStart.kind)
            self._end(undos, RequestPhase.SUCCEEDED, event.reason, at)
        self._end(others, RequestPhase.FAILED, f"The run ended first: {event.reason}", at)

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
        """Ends open requests only: a request has one terminal phase, the first that it gets."""
        requests.filter(phase__in=OPEN_PHASES).update(
            phase=phase, message=message, path=path, ended_at=at
        )


def forget(run: Run) -> None:
    """Blank the columns folded from the run's journal, so that they can be folded again.

    The status stays until the fold is over: the database allows one live run per pipeline.
    """
    blank = Run()
    for name in PROJECTED:
        if name != "status":
            setattr(run, name, getattr(blank, name))
