"""Measures one subtask's part in a checkpoint: arrivals, holding back, cut and upload."""

from dataclasses import dataclass, field

from pipelines.channels.channel import ChannelStatistics
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier
from pipelines.domain.ids import ChannelId
from pipelines.domain.phases import ChannelAlignment


@dataclass(slots=True)
class AlignmentTiming:
    """Of the checkpoint whose first barrier came last. Offsets are after the trigger."""

    clock: Clock
    _trigger_wall_ms: int = 0
    _first_ms: float = 0.0
    _last_ms: float = 0.0
    _first_offset_ms: float = 0.0
    _arrivals: dict[ChannelId, float] = field(default_factory=dict)

    def on_barrier(self, channel: ChannelId, barrier: Barrier, *, is_first: bool) -> None:
        now_ms = self.clock.monotonic_ms()
        if is_first:
            self._first_ms = now_ms
            self._first_offset_ms = max(0.0, float(self.clock.wall_ms() - barrier.trigger_ms))
            self._arrivals = {}
        self._last_ms = now_ms
        self._arrivals[channel] = now_ms

    @property
    def start_delay_ms(self) -> float:
        return self._first_offset_ms

    @property
    def alignment_ms(self) -> float:
        return self._last_ms - self._first_ms

    def channels(self, statistics: list[ChannelStatistics]) -> list[ChannelAlignment]:
        """Called when the last barrier is in, before anything is resumed."""
        queued = {s.channel: s for s in statistics if s.held_back}
        return [
            ChannelAlignment(
                channel=channel,
                arrived_ms=self._first_offset_ms + arrived_ms - self._first_ms,
                blocked_ms=self._last_ms - arrived_ms,
                buffered_records=queued[channel].queued_records if channel in queued else 0,
                buffered_bytes=queued[channel].queued_bytes if channel in queued else 0,
            )
            for channel, arrived_ms in self._arrivals.items()
        ]
