"""What the coordinator asks of its host, to be carried out in order."""

from dataclasses import dataclass
from typing import NamedTuple

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.protocol.triggering import TriggerRequest


class SubtaskId(NamedTuple):
    vertex: Uid
    subtask: int


@dataclass(frozen=True, slots=True)
class Inject:
    """Send the barrier into the stream at every source subtask."""

    checkpoint_id: CheckpointId
    request: TriggerRequest


@dataclass(frozen=True, slots=True)
class Finalize:
    """All have acknowledged: write the manifest, then report `on_published` or `on_unpublished`."""

    checkpoint_id: CheckpointId
    request: TriggerRequest
    snapshots: tuple[SubtaskSnapshot, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """The manifest is durable: record the point and notify every subtask."""

    checkpoint_id: CheckpointId
    request: TriggerRequest


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """Notify every subtask, delete what was written, answer the requester."""

    checkpoint_id: CheckpointId
    request: TriggerRequest
    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class DiscardLate:
    """A subtask has written files of a checkpoint that was aborted before: delete them."""

    checkpoint_id: CheckpointId
    request: TriggerRequest


@dataclass(frozen=True, slots=True)
class FailAttempt:
    """More checkpoints in a row have failed than the settings tolerate."""

    message: str


CoordinationEffect = Inject | Finalize | Complete | AbortCheckpoint | DiscardLate | FailAttempt
