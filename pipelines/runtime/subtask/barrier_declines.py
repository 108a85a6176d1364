"""Decides which checkpoints a barrier, or a cancellation marker in its place, has ended here.

The subtask declines each under Flink's name, so that the coordinator does not wait until it
expires; mostly the coordinator has aborted it before, or heard of it from another subtask.

Source: Flink, `CheckpointBarrierHandler.notifyAbort` and its callers.
"""

from collections.abc import Iterable

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.ids import CheckpointId
from pipelines.protocol.effects import Abort, AlignmentEffect, CancelDownstream


def declines(
    came: CheckpointId, effects: Iterable[AlignmentEffect]
) -> dict[CheckpointId, CheckpointFailureReason]:
    """`effects` are what the machine decided when the barrier or marker of `came` arrived."""
    declined: dict[CheckpointId, CheckpointFailureReason] = {}
    for effect in effects:
        match effect:
            case Abort(checkpoint_id) if checkpoint_id != came:
                declined[checkpoint_id] = CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED
            case Abort(checkpoint_id) | CancelDownstream(checkpoint_id):
                reason = CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
                declined[checkpoint_id] = reason
    return declined
