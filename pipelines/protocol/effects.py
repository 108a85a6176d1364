"""What the machines that follow barriers ask of their host."""

from dataclasses import dataclass

from pipelines.domain.ids import ChannelId, CheckpointId


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
