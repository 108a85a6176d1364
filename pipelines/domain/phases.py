"""The duration of each step of one subtask's part in one checkpoint."""

import msgspec

from pipelines.domain.ids import ChannelId, Uid


class HeldBack(msgspec.Struct, frozen=True, array_like=True):
    """How much one channel held back at one moment."""

    at_ms: float  # after the trigger
    records: int
    size_bytes: int


class ChannelAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """One input channel while its subtask aligned."""

    channel: ChannelId
    arrived_ms: float  # barrier arrival, after the trigger
    blocked_ms: float  # how long the channel was held back after that
    buffered_records: int  # queued behind the barrier during that time
    buffered_bytes: int
    persisted_records: int = 0  # in flight, overtaken by the barrier, stored in the snapshot
    persisted_bytes: int = 0
    is_over_cap: bool = False  # it held back more than the setting allows
    steps: tuple[HeldBack, ...] = ()  # how it came to that: when its barrier came, then by arrivals


class SubtaskPhases(msgspec.Struct, frozen=True, kw_only=True):
    """Start delay, alignment, synchronous cut, asynchronous upload; all after the trigger."""

    vertex: Uid
    subtask: int
    start_delay_ms: float  # trigger to first barrier (for a source: to the injected barrier)
    alignment_ms: float  # first to last barrier
    sync_ms: float  # how long the subtask stood still
    async_ms: float  # upload, while processing goes on
    acknowledged_ms: float  # after the trigger, as the coordinator saw it
    state_bytes: int
    uploaded_bytes: int
    is_unaligned: bool = False  # the barrier overtook records: no input was held back
    persisted_bytes: int = 0  # records in flight on its inputs and outputs, in the snapshot
    channels: list[ChannelAlignment]
