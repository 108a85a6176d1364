"""Decides how many failed checkpoints in a row a run tolerates.

Pure. A failure counts if its reason does, its checkpoint has not been counted yet, and nothing
newer has completed. A savepoint counts only if a subtask failed it. If the coordinator could not
finish one in time or could not write its manifest, that says nothing about checkpointing.

Source: Flink, `CheckpointFailureManager`.
"""

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId


class FailureTolerance:
    """The count outlives attempts: only a completed checkpoint, or giving up, resets it."""

    def __init__(self, tolerable: int) -> None:
        self.tolerable = tolerable
        self._counted: set[CheckpointId] = set()
        self._newest_completed = NO_CHECKPOINT

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        self._counted.clear()
        self._newest_completed = max(self._newest_completed, checkpoint_id)

    def is_exceeded_by(
        self,
        checkpoint_id: CheckpointId,
        reason: CheckpointFailureReason,
        *,
        is_savepoint: bool,
        by_subtask: bool,
    ) -> bool:
        """Counts this failure; True, once: more have now failed in a row than is tolerated."""
        if not reason.counts_against_tolerance or checkpoint_id < self._newest_completed:
            return False
        if is_savepoint and not by_subtask:
            return False
        self._counted.add(checkpoint_id)
        is_exceeded = len(self._counted) > self.tolerable
        if is_exceeded:
            self._counted.clear()
        return is_exceeded
