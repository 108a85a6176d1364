"""After which point a run has to end, and as what: finished, or cancelled with a savepoint.

A point that stops the run is durable and recorded before anybody ends. What fails from then on
(a sink that cannot commit, a slot that dies) is a failure of the attempt: the run goes back to that
very point, commits what it prepared, and ends with it, never with an older one.

Source: Flink, `StopWithSavepointTerminationHandlerImpl`.
"""

from pipelines.domain.status import CheckpointKind, JobStatus
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.run_record import RunRecord


class RunEnd:
    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._stop_path: str | None = None  # the point after which the run has to end
        self._is_savepoint = False
        self._is_cancelled = False  # by whoever asked for that point

    @property
    def is_due(self) -> bool:
        """Its last point is complete; an attempt that runs now runs only to end."""
        return self._stop_path is not None

    def on_completed(self, request: TriggerRequest, path: str) -> None:
        if request.stops_run and self._stop_path is None:
            self._stop_path = path
            self._is_savepoint = request.kind is CheckpointKind.SAVEPOINT
            self._is_cancelled = request.cancels_run

    def on_all_slots_ended(self) -> None:
        if not self._is_cancelled:
            self._record.end(JobStatus.FINISHED, self._finish_reason())
            return
        reason = f"Cancelled with the savepoint {self._stop_path}."
        self._record.move_to(JobStatus.CANCELLING, reason)
        self._record.end(JobStatus.CANCELED, reason)

    def _finish_reason(self) -> str:
        if not self._is_savepoint:
            return "The sources have ended and the final checkpoint is committed."
        return f"Stopped with the savepoint {self._stop_path}."
