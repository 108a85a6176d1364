"""Settings that allow several concurrent checkpoints, and a count of how many there were."""

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointCompleted, CheckpointFailed, CheckpointTriggered
from tests.driven_run import StartedRun

CONCURRENT = {
    "execution.checkpointing.interval": "10 ms",
    "execution.checkpointing.max-concurrent-checkpoints": "3",
}


def most_under_way(run: StartedRun) -> int:
    """Returns the largest number of checkpoints triggered but not ended at the same time."""
    under_way: set[int] = set()
    most = 0
    for envelope in run.poll():
        match envelope.event:
            case CheckpointTriggered(checkpoint_id=checkpoint_id):
                under_way.add(checkpoint_id)
                most = max(most, len(under_way))
            case CheckpointCompleted(checkpoint_id=checkpoint_id):
                under_way.discard(checkpoint_id)
            case CheckpointFailed(checkpoint_id=int(checkpoint_id), reason=reason):
                subsumed = CheckpointFailureReason.CHECKPOINT_SUBSUMED
                assert reason is not subsumed or most > 1
                under_way.discard(checkpoint_id)
    return most
