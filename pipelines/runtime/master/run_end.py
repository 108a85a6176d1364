"""After which point a run has to end, and as what: finished, or cancelled with a savepoint.

A point that stops the run is durable and recorded before anybody ends. What fails from then on (a
sink that cannot commit, a slot or the driver that dies) is a failure of the attempt: the run goes
back to that very point and to no older one, commits what it prepared, reads nothing more, and ends
with it. Flink fails the job there instead, and leaves the commit to whoever restores the savepoint.

Source: Flink, `StopWithSavepointTerminationHandlerImpl`, `StopWithSavepointStoppingException`.
"""

from pipelines.domain.errors import CorruptSnapshot
from pipelines.domain.events import RunStopping
from pipelines.domain.ids import RequestId
from pipelines.domain.status import CheckpointKind, JobStatus, RequestOutcome
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.master.request_desk import RequestDesk
from pipelines.runtime.master.run_record import RunRecord


class RunEnd:
    """`stopping`: what an earlier driver of the run has put down."""

    def __init__(self, record: RunRecord, stopping: RunStopping | None) -> None:
        self._record = record
        self._stopping = stopping

    @property
    def is_due(self) -> bool:
        """The last point is complete; an attempt that begins now only commits what it prepared."""
        return self._stopping is not None

    def is_asked_by(self, request_id: RequestId) -> bool:
        """The command has its point already, and is answered when the run has ended."""
        return self._stopping is not None and self._stopping.request_id == request_id

    def on_completed(self, request: TriggerRequest, path: str) -> None:
        """Put down at once: a driver that takes over must not let the run go on."""
        if not request.stops_run or self._stopping is not None:
            return
        self._stopping = RunStopping(
            path=path,
            kind=request.kind,
            cancels_run=request.cancels_run,
            request_id=request.request_id,
        )
        self._record.emit(self._stopping)

    def check_start(self, location: str | None) -> None:
        """Where an attempt is about to start: at the last point, unless that is of no use any more.

        Without its final checkpoint a run reads its tail again. Raises CorruptSnapshot for a
        savepoint: a person was promised that the run has ended there.
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

    def on_all_committed(self) -> None:
        """Nothing is left to do for any slot."""
        stopping = self._stopping
        if stopping is None or not stopping.cancels_run:
            self._record.end(JobStatus.FINISHED, self._finish_reason())
            return
        reason = f"Cancelled with the savepoint {stopping.path}."
        self._record.move_to(JobStatus.CANCELLING, reason)
        self._record.end(JobStatus.CANCELED, reason)

    def reason_of_failure(self, reason: str) -> str:
        """With what is left of a run that failed after its last point was complete."""
        if self._stopping is None:
            return reason
        return (
            f"{reason} The point {self._stopping.path} is consistent, but some of the output that"
            " it covers may not be committed; a run that is restored from it commits it, once."
        )

    def answer(self, desk: RequestDesk, status: JobStatus, reason: str) -> None:
        """Whoever asked for the end hears of it when it has come."""
        if self._stopping is None or self._stopping.request_id is None:
            return
        path, has_failed = self._stopping.path, status is JobStatus.FAILED
        outcome = RequestOutcome.FAILED if has_failed else RequestOutcome.SUCCEEDED
        message = reason if has_failed else f"Completed: {path}"
        desk.conclude(self._stopping.request_id, outcome, message, path)

    def _finish_reason(self) -> str:
        if self._stopping is None or self._stopping.kind is not CheckpointKind.SAVEPOINT:
            return "The sources have ended and the final checkpoint is committed."
        return f"Stopped with the savepoint {self._stopping.path}."
