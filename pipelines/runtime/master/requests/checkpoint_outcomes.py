"""What follows when a checkpoint is published, completed or aborted: answers, and the run's end.

Stands below the checkpoint host, which calls it, and decides nothing about checkpoints.
"""

from pipelines.domain.status import RecoveryPhase, RequestOutcome
from pipelines.protocol.restart import RestartBackoff
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.master.attempt.recovery_watch import RecoveryWatch
from pipelines.runtime.master.checkpoints.underway import CheckpointListener
from pipelines.runtime.master.requests.request_desk import RequestDesk
from pipelines.runtime.master.requests.run_end import RunEnd


class CheckpointOutcomes(CheckpointListener):
    """Guarantee: what the end of the run depends on is recorded before the request is answered."""

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
        if not request.stops_run:  # otherwise answered when the run has ended
            outcome, message = RequestOutcome.SUCCEEDED, f"Completed: {path}"
            self._desk.answer(request.request_id, outcome, message, path)

    def checkpoint_aborted(self, request: TriggerRequest, message: str) -> None:
        self._end.on_aborted(request)
        self._desk.answer(request.request_id, RequestOutcome.FAILED, message)
