"""How long each step of one subtask's part in one checkpoint took."""

import msgspec

from pipelines.domain.ids import ChannelId, Uid


class HeldBack(msgspec.Struct, frozen=True, array_like=True):
    """What one channel held back at a moment."""

    at_ms: float  # after the trigger
    records: int
    size_bytes: int


class ChannelAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """One input channel while its subtask aligned."""

    channel: ChannelId
    arrived_ms: float  # barrier arrival, after the trigger
    blocked_ms: float  # how long the channel was then held back
    buffered_records: int  # what queued up behind the barrier meanwhile
    buffered_bytes: int
    persisted_records: int = 0  # in flight, overtaken by the barrier, kept in the snapshot
    persisted_bytes: int = 0
    is_over_cap: bool = False  # it held back more than the setting allows
    steps: tuple[HeldBack, ...] = ()  # how it came to that: when its barrier came, then by arrivals


class SubtaskPhases(msgspec.Struct, frozen=True, kw_only=True):
    """Start delay, alignment, synchronous cut, asynchronous upload; all after the trigger."""

    vertex: Uid
    subtask: int
    start_delay_ms: float  # trigger to first barrier (for a source: to the injected barrier)
    alignment_ms: float  # first to last barrier
    sync_ms: float  # the subtask stood still for this long
    async_ms: float  # upload beside the processing
    acknowledged_ms: float  # after the trigger, as the coordinator saw it
    state_bytes: int
    uploaded_bytes: int
    is_unaligned: bool = False  # cut by overtaking: no input was waited for
    persisted_bytes: int = 0  # records in flight on its inputs and outputs, in the snapshot
    channels: list[ChannelAlignment]
