"""Decides which point ends a run, and how it ends: finished, or cancelled with a savepoint.

Before the driver publishes the manifest, it records that the point is to stop the run. It publishes
the manifest before anything ends. So a later driver that finds the manifest knows its purpose. A
later failure (a sink that cannot commit, a slot or the driver that dies) is a failure of the
attempt. The run goes back to exactly that point, commits what the point prepared, reads nothing
more, and ends with it. Flink fails the job there instead, and leaves the commit to a restore of the
savepoint.

The checkpoint host reports each checkpoint that is published, completed or aborted. These reports
lead to the answers to requests, and to the end. Decides nothing about checkpoints.

Source: Flink, `StopWithSavepointTerminationHandlerImpl`, `StopWithSavepointStoppingException`.
"""

import msgspec

from pipelines.domain.errors import CorruptSnapshot, check
from pipelines.domain.events import RunStopping
from pipelines.domain.ids import RequestId
from pipelines.domain.status import (
    CheckpointKind,
    JobStatus,
    RecoveryPhase,
    RequestOutcome,
    StopStage,
)
from pipelines.protocol.restart import RestartBackoff
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.master.attempt.watchers import RecoveryWatch
from pipelines.runtime.master.checkpoints.underway import CheckpointListener
from pipelines.runtime.master.requests.request_desk import RequestDesk
from pipelines.runtime.master.run_context import RunRecord


class RunEnd:
    """Decides on the end of the run. `stopping`: the record of an earlier driver of the run."""

    def __init__(self, record: RunRecord, stopping: RunStopping | None) -> None:
        self._record = record
        self._stopping = stopping
        self._intended: RunStopping | None = None  # its point may not be complete yet
        self._has_committed = False
        self._is_output_lost = False

    @property
    def is_due(self) -> bool:
        """True once the last point is complete: an attempt that begins then only commits output."""
        return self._stopping is not None

    def is_asked_by(self, request_id: RequestId) -> bool:
        """Returns True if the command has its point already. The end of the run answers it."""
        return self._stopping is not None and self._stopping.request_id == request_id

    def on_publishing(self, request: TriggerRequest, path: str) -> None:
        """Records first that the point stops the run: no driver that finds it may continue."""
        if not request.stops_run or self._stopping is not None:
            return
        check(self._intended is None, "one point at a time is to stop the run", path=path)
        self._intended = RunStopping(
            path=path,
            kind=request.kind,
            cancels_run=request.cancels_run,
            request_id=request.request_id,
            stage=StopStage.PUBLISHING,
        )
        self._record.emit(self._intended)

    def on_completed(self, request: TriggerRequest) -> None:
        self._stopping = self._decided(request, StopStage.PUBLISHED) or self._stopping

    def on_aborted(self, request: TriggerRequest) -> None:
        """Records, before any answer, that the run continues, whatever the storage contains."""
        self._decided(request, StopStage.GIVEN_UP)

    def _decided(self, request: TriggerRequest, stage: StopStage) -> RunStopping | None:
        """Returns None unless `request` is the one whose manifest is being published."""
        intended = self._intended
        if intended is None or not request.stops_run or request.request_id != intended.request_id:
            return None
        self._intended = None
        decided = msgspec.structs.replace(intended, stage=stage)
        self._record.emit(decided)
        return decided

    def check_start(self, location: str | None) -> None:
        """Checks where an attempt is about to start, once the run has its last point.

        If that point has become unusable and was a checkpoint, the run reads the rest of its input
        again. Raises CorruptSnapshot if it was a savepoint, because the operator was promised that
        the run has ended there.
        """
        if self._stopping is None or self._stopping.path == location:
            return
        if self._stopping.kind is not CheckpointKind.SAVEPOINT:
            self._stopping = None
            return
        raise CorruptSnapshot(
            f"The run has ended with {self._stopping.path}, which cannot be used any more; it does"
            " not go back to an older point. Choose a point and restore it."
        )

    def on_output_lost(self) -> None:
        """A completed checkpoint lost output: if it is the last point, no attempt can commit it."""
        self._is_output_lost = True

    def on_all_committed(self) -> None:
        """Ends the run: no slot has anything left to do."""
        self._has_committed = True
        stopping = self._stopping
        if stopping is None or not stopping.cancels_run:
            self._record.end(JobStatus.FINISHED, self._finish_reason())
            return
        reason = f"Cancelled with the savepoint {stopping.path}."
        self._record.move_to(JobStatus.CANCELLING, reason)
        self._record.end(JobStatus.CANCELED, reason)

    def reason_of_failure(self, reason: str) -> str:
        """Adds what a restore can do, if the run failed after its last point was complete."""
        if self._stopping is None:
            return reason
        point = f"{reason.rstrip('.')}. The point {self._stopping.path}"
        if self._is_output_lost:
            return (
                f"{point} counts on that output: while it is lost, a run that is restored from it"
                " ends in the same way."
            )
        return (
            f"{point} is consistent, but some of the output that it covers may not be committed; a"
            " run that is restored from it commits it, once."
        )

    def reason_of_cancellation(self, reason: str) -> str:
        """Like `reason_of_failure`, but only for savepoints: a cancelled run may keep no others."""
        is_kept = self._stopping is not None and self._stopping.kind is CheckpointKind.SAVEPOINT
        return self.reason_of_failure(reason) if is_kept else reason

    def answer(self, desk: RequestDesk, reason: str) -> None:
        """Answers the request that ended the run, once the run has ended."""
        if self._stopping is None or self._stopping.request_id is None:
            return
        path, is_done = self._stopping.path, self._has_committed
        outcome = RequestOutcome.SUCCEEDED if is_done else RequestOutcome.FAILED
        message = f"Completed: {path}" if is_done else reason
        desk.conclude(self._stopping.request_id, outcome, message, path)

    def _finish_reason(self) -> str:
        if self._stopping is None or self._stopping.kind is not CheckpointKind.SAVEPOINT:
            return "The sources have ended and the final checkpoint is committed."
        return f"Stopped with the savepoint {self._stopping.path}."


class CheckpointOutcomes(CheckpointListener):
    """Guarantee: it answers a request only after it has recorded what the end depends on."""

    def __init__(
        self, *, desk: RequestDesk, end: RunEnd, recovery: RecoveryWatch, restart: RestartBackoff
    ) -> None:
        self._desk = desk
        self._end = end
        self._recovery = recovery
        self._restart = restart

    def checkpoint_publishing(self, request: TriggerRequest, path: str) -> None:
        self._end.on_publishing(request, path)

    def checkpoint_completed(self, request: TriggerRequest, path: str) -> None:
        self._restart.on_progress()
        self._recovery.reached(RecoveryPhase.FIRST_CHECKPOINT)
        self._end.on_completed(request)
        if not request.stops_run:  # otherwise the end of the run answers it
            outcome, message = RequestOutcome.SUCCEEDED, f"Completed: {path}"
            self._desk.answer(request.request_id, outcome, message, path)

    def checkpoint_aborted(self, request: TriggerRequest, message: str) -> None:
        self._end.on_aborted(request)
        self._desk.answer(request.request_id, RequestOutcome.FAILED, message)
