"""What the alignment machine may ask of its host."""

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
    """A newer checkpoint has overtaken this one; it will never be cut here."""

    checkpoint_id: CheckpointId


AlignmentEffect = Block | Resume | Snapshot | Abort
