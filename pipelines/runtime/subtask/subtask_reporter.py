"""What a subtask reports to its slot, and what it asks of it."""

from typing import Protocol

from pipelines.domain.checkpoint_failures import CheckpointFailureReason, SubtaskPhases
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.runtime.subtask.chains.chain_node import ChainPlace


class SubtaskReporter(Protocol):
    """Called from the subtask's thread and from upload threads."""

    def acknowledged(
        self, checkpoint_id: CheckpointId, snapshot: SubtaskSnapshot, phases: SubtaskPhases
    ) -> None: ...

    def declined(
        self, place: ChainPlace, checkpoint_id: CheckpointId, error: Exception
    ) -> None: ...

    def committed(self, place: ChainPlace, checkpoint_id: CheckpointId) -> None: ...

    def sources_ended(self, place: ChainPlace) -> None: ...

    def reservation_wanted(self, place: ChainPlace) -> None:
        """At most once: without another checkpoint this source stands still."""
        ...

    def failed(self, place: ChainPlace, error: BaseException) -> None: ...

    def ended(self, place: ChainPlace) -> None: ...

    def reach(self, point: FaultPoint) -> None:
        """A fault on purpose may hit here: raise, or end or stop the process."""
        ...


class CheckpointDeclined(Exception):
    """This subtask will not take part in a checkpoint; names the reason."""

    def __init__(self, reason: CheckpointFailureReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def failure_reason(error: Exception) -> CheckpointFailureReason:
    """Any other failure on an upload thread is one of the asynchronous phase."""
    if isinstance(error, CheckpointDeclined):
        return error.reason
    return CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
