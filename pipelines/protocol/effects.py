"""The effects that checkpoint machines ask of their hosts; the interface of a subtask's machine.

A subtask's machine follows the barriers of its inputs (`protocol.alignment`): it aligns them,
counts them, or lets them overtake. The coordinator's host carries its effects out in order.
Source: Flink, `CheckpointBarrierHandler`.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.ids import ChannelId, CheckpointId, Uid
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.protocol.triggering import TriggerRequest


@dataclass(frozen=True, slots=True)
class Block:
    """Take nothing more from this channel until it is resumed."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class Resume:
    channels: frozenset[ChannelId]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Pass the barrier on, then cut the state: both before the next element."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Abort:
    """The checkpoint will never complete here: overtaken by a newer one, aborted or cancelled."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CancelDownstream:
    """Send a cancellation marker in place of the barrier, which will never be passed on."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Overtake:
    """Pass the barrier on ahead of everything queued, cut, and keep what the barrier has overtaken.

    For each channel of `unread`, the snapshot contains what is queued before its barrier, and what
    arrives before its barrier until `AllArrived`.
    """

    checkpoint_id: CheckpointId
    unread: frozenset[ChannelId]


@dataclass(frozen=True, slots=True)
class AllArrived:
    """No barrier of this checkpoint is outstanding: its channel state is complete."""

    checkpoint_id: CheckpointId


AlignmentEffect = Block | Resume | Snapshot | Abort | CancelDownstream | Overtake | AllArrived


class BarrierHandler(Protocol):
    """The host passes in events in order of arrival, and carries out the effects, in order, before
    the next event."""

    @property
    def aligning_id(self) -> CheckpointId | None:
        """The checkpoint whose barrier some, but not all, inputs have delivered."""
        ...

    @property
    def has_open_inputs(self) -> bool: ...

    def on_barrier(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        """The host has taken from `channel` everything before the barrier and nothing after it."""
        ...

    def on_cancelled(
        self, channel: ChannelId, checkpoint_id: CheckpointId
    ) -> list[AlignmentEffect]:
        """`channel` has delivered a cancellation marker in place of the barrier."""
        ...

    def on_aborted(self, checkpoint_id: CheckpointId) -> list[AlignmentEffect]:
        """The coordinator, or this subtask itself, has aborted `checkpoint_id`."""
        ...

    def on_end(self, channel: ChannelId) -> list[AlignmentEffect]:
        """The input is exhausted."""
        ...


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
