"""Delivers what the master says about checkpoints to the subtasks of one slot.

`subtask_reports` is the other direction.
"""

from pipelines.domain.elements import Barrier
from pipelines.domain.status import SavepointFormat
from pipelines.runtime.control import Aborted, Completed, Inject
from pipelines.runtime.slot.deployment import Deployment
from pipelines.runtime.subtask.checkpoint_locations import CheckpointLocations
from pipelines.runtime.subtask.mailbox import CheckpointAborted, CheckpointCompleted, InjectBarrier

AboutCheckpoint = Inject | Completed | Aborted


def deliver(
    message: AboutCheckpoint, deployment: Deployment, locations: CheckpointLocations
) -> None:
    """A barrier starts at the sources only; every subtask hears how a checkpoint ended."""
    match message:
        case Inject(checkpoint_id=checkpoint_id):
            locations.on_triggered(checkpoint_id, message.location)
            for source in deployment.sources:
                source.mailbox.post(InjectBarrier(barrier_of(message), message.drains))
        case Completed(checkpoint_id=checkpoint_id):
            locations.on_over(checkpoint_id)
            for subtask in deployment.subtasks:
                subtask.mailbox.post(CheckpointCompleted(checkpoint_id))
        case Aborted(checkpoint_id=checkpoint_id):
            locations.on_over(checkpoint_id)
            for subtask in deployment.subtasks:
                subtask.mailbox.post(CheckpointAborted(checkpoint_id))


def barrier_of(message: Inject) -> Barrier:
    return Barrier(
        message.checkpoint_id,
        message.trigger_ms,
        is_savepoint=message.savepoint_format is not None,
        is_native=message.savepoint_format is SavepointFormat.NATIVE,
        is_final=message.is_final,
        confirmed_id=message.confirmed_id,
    )
