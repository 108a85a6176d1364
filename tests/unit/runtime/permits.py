"""Commit permits as the driver's fence issues them."""

from pipelines.domain.ids import Attempt, CheckpointId
from pipelines.protocol.commit import AttemptFence, CommitPermit


def permit(checkpoint_id: int, attempt: int = 1) -> CommitPermit:
    fence = AttemptFence()
    fence.on_attempt(Attempt(attempt))
    permitted = fence.permit_commit(Attempt(attempt), CheckpointId(checkpoint_id))
    assert isinstance(permitted, CommitPermit)
    return permitted
