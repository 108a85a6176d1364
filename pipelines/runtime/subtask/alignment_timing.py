"""Measures a subtask's part in its checkpoints: arrivals of barriers and holding back."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from pipelines.channels.channel import HeldStep
from pipelines.domain.checkpoint_failures import ChannelAlignment, HeldBack
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier
from pipelines.domain.errors import check
from pipelines.domain.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords

STEPS_MAX = 16
"""The limit for each channel and checkpoint; a journal keeps the steps as long as itself."""


@dataclass(slots=True)
class Alignment:
    """One checkpoint, from its first barrier here to its last. Offsets are after the trigger."""

    barrier: Barrier
    first_ms: float  # monotonic
    start_delay_ms: float
    _arrivals: dict[ChannelId, float] = field(default_factory=dict)

    def on_barrier(self, channel: ChannelId, now_ms: float) -> None:
        self._arrivals.setdefault(channel, now_ms)

    @property
    def alignment_ms(self) -> float:
        return max(self._arrivals.values(), default=self.first_ms) - self.first_ms

    def channels(
        self, held: Mapping[ChannelId, Sequence[HeldStep]], over_cap: Collection[ChannelId] = ()
    ) -> list[ChannelAlignment]:
        """Call when the last barrier is in, before anything is resumed."""
        last_ms = self.first_ms + self.alignment_ms
        return [
            ChannelAlignment(
                channel=channel,
                arrived_ms=self._after_trigger(arrived_ms),
                blocked_ms=last_ms - arrived_ms if channel in held else 0.0,
                buffered_records=held[channel][-1].records if channel in held else 0,
                buffered_bytes=held[channel][-1].size_bytes if channel in held else 0,
                is_over_cap=channel in over_cap,
                steps=self._steps(held.get(channel, ())),
            )
            for channel, arrived_ms in self._arrivals.items()
        ]

    def _steps(self, held: Sequence[HeldStep]) -> tuple[HeldBack, ...]:
        return tuple(
            HeldBack(round(self._after_trigger(step.at_ms), 3), step.records, step.size_bytes)
            for step in evenly(held, STEPS_MAX)
        )

    def _after_trigger(self, monotonic_ms: float) -> float:
        return self.start_delay_ms + monotonic_ms - self.first_ms


def evenly(held: Sequence[HeldStep], count_max: int) -> Sequence[HeldStep]:
    """At most `count_max` of the steps, with the first and the last."""
    if len(held) <= count_max:
        return held
    last = len(held) - 1
    return [held[last * index // (count_max - 1)] for index in range(count_max)]


def with_persisted(
    channels: list[ChannelAlignment], recorded: Iterable[InFlightRecords]
) -> list[ChannelAlignment]:
    """Adds to each channel what of it went into the snapshot."""
    kept = {one.channel: one for one in recorded}
    return [
        msgspec.structs.replace(
            one,
            persisted_records=kept[one.channel].rows,
            persisted_bytes=kept[one.channel].size_bytes,
        )
        if one.channel in kept
        else one
        for one in channels
    ]


class AlignmentTiming:
    """Keeps every checkpoint with a barrier here, until its cut takes it out."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._under_way: dict[CheckpointId, Alignment] = {}
        self._newest_taken: CheckpointId = NO_CHECKPOINT

    def on_barrier(self, channel: ChannelId, barrier: Barrier) -> None:
        """A repeated or late barrier changes nothing."""
        alignment = self.on_announced(barrier)
        if alignment is not None:
            alignment.on_barrier(channel, self.clock.monotonic_ms())

    def on_announced(self, barrier: Barrier) -> Alignment | None:
        """The barrier stands in a queue, behind records; None: it is late."""
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id <= self._newest_taken:
            return None
        if checkpoint_id not in self._under_way:
            delay_ms = max(0.0, float(self.clock.wall_ms() - barrier.trigger_ms))
            now_ms = self.clock.monotonic_ms()
            self._under_way[checkpoint_id] = Alignment(barrier, now_ms, delay_ms)
        return self._under_way[checkpoint_id]

    def of(self, checkpoint_id: CheckpointId) -> Alignment:
        is_known = checkpoint_id in self._under_way
        check(is_known, "a barrier comes before its cut", checkpoint_id=checkpoint_id)
        return self._under_way[checkpoint_id]

    def take(self, checkpoint_id: CheckpointId) -> Alignment:
        """Takes out a checkpoint that is over here; forgets all older ones, cut or given up."""
        alignment = self.of(checkpoint_id)
        self._newest_taken = checkpoint_id
        self._under_way = {n: a for n, a in self._under_way.items() if n > checkpoint_id}
        return alignment
