"""How many bytes the channels of one gate may hold, so that their reader soon gets to a barrier.

A barrier waits behind what is queued before it. A bound in bytes says nothing about how long that
takes: eight megabytes are a tenth of a second to one operator and minutes to another. So the gate
measures how fast its operator consumes and announces only as much credit as the operator consumes
within a target time. Pure: the gate measures, and withholds the credit.

Source: Flink's buffer debloating (FLIP-183, `BufferDebloater`, `ThroughputCalculator`). Flink
shrinks its buffers, we shrink the credit. The cost that every batch has, however small it is, is
ours to tell apart: Flink's operators know no batches.
"""

import math
from dataclasses import dataclass

from pipelines.domain.errors import check

INITIAL_WINDOW_BYTES = 16 << 10
"""Of a channel whose reader has consumed nothing yet. The first measurement replaces it."""

MIN_WINDOW_BYTES = 1 << 10
"""A batch of any size passes while any credit is left, so no window is too small for one."""

ROUND_TRIPS_MS = 20.0
"""A window lasts at least so long, however many channels share the target: two ways of the credit
to the writer and back, with all that a busy machine adds to them."""

SAMPLE_MS = 5.0
"""Batches that take less are measured together: no single one says much."""

_MOST_OVERHEAD = 4.0
"""The cost of a byte is at least this part of the average one: the rest may be what each batch
costs by itself. It bounds what a wrong estimate does."""

_LEAST_SPREAD = 0.05
"""Batches whose sizes vary less than this (variance by squared mean) cannot tell the two apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Debloating:
    """Flink's options `taskmanager.network.memory.buffer-debloat.*`."""

    target_ms: float
    period_ms: float = 200.0  # between two changes
    samples: int = 20  # how many periods the average looks back
    threshold_percent: int = 25  # a smaller change is none

    @property
    def memory_ms(self) -> float:
        """After so long a measurement has lost two thirds of its weight."""
        return self.period_ms * self.samples / 2


class Debloater:
    """Sets the window of each channel of one gate: what its writer may have in flight.

    Guarantee: the window is never below `MIN_WINDOW_BYTES` nor above the capacity, and what all
    windows allow is consumed within the target, once the measurements show how fast that is. Needs
    that the time it is given is the time of the batches, without that spent waiting for input.
    """

    def __init__(
        self, debloating: Debloating, *, channel_count: int, capacity_bytes: int, joins: bool
    ) -> None:
        """`joins`: the operator handles all that is queued as one batch."""
        check(channel_count > 0, "a gate that is measured has channels")
        self._debloating = debloating
        self._channel_count = channel_count
        self._capacity_bytes = capacity_bytes
        self._joins = joins
        self._changed_ms = -math.inf
        self._weight = self._bytes = self._ms = 0.0  # of the batches, each less as time goes by
        self._bytes_squared = self._bytes_by_ms = 0.0
        self.window_bytes = min(INITIAL_WINDOW_BYTES, capacity_bytes)

    def on_consumed(self, size_bytes: int, took_ms: float, now_ms: float) -> None:
        """A batch of this size has been handled, with all that came of it, in this time."""
        self._add(size_bytes, max(0.0, took_ms))
        if now_ms - self._changed_ms < self._debloating.period_ms:
            return
        wanted_bytes = self._wanted_bytes()
        if self._is_a_change(wanted_bytes):
            self.window_bytes = wanted_bytes
            self._changed_ms = now_ms

    def consumed_in_ms(self, queued_bytes: int) -> float | None:
        """How long the operator takes for so much; None: it has consumed nothing yet."""
        return None if not self._bytes else queued_bytes * self._ms / self._bytes

    def _add(self, size_bytes: int, took_ms: float) -> None:
        kept = math.exp(-took_ms / self._debloating.memory_ms)
        self._weight = self._weight * kept + 1.0
        self._bytes = self._bytes * kept + size_bytes
        self._ms = self._ms * kept + took_ms
        self._bytes_squared = self._bytes_squared * kept + size_bytes * size_bytes
        self._bytes_by_ms = self._bytes_by_ms * kept + size_bytes * took_ms

    def _wanted_bytes(self) -> int:
        ms_per_byte = self._ms_per_byte()
        window_ms = max(self._debloating.target_ms / self._channel_count, ROUND_TRIPS_MS)
        if ms_per_byte * self._capacity_bytes <= window_ms:
            return self._capacity_bytes
        return min(max(round(window_ms / ms_per_byte), MIN_WINDOW_BYTES), self._capacity_bytes)

    def _ms_per_byte(self) -> float:
        """What one byte more costs.

        Where what is queued is handled together, the cost of a batch itself is paid once, and a
        smaller window would not make it smaller: a line through the measurements leaves it out.
        """
        average = self._ms / self._bytes if self._bytes else 0.0
        spread = self._weight * self._bytes_squared - self._bytes * self._bytes
        if not self._joins or spread < _LEAST_SPREAD * self._bytes * self._bytes:
            return average
        slope = (self._weight * self._bytes_by_ms - self._bytes * self._ms) / spread
        return min(max(slope, average / _MOST_OVERHEAD), average)

    def _is_a_change(self, wanted_bytes: int) -> bool:
        if wanted_bytes == self.window_bytes:
            return False
        if wanted_bytes in (MIN_WINDOW_BYTES, self._capacity_bytes):
            return True
        change = abs(wanted_bytes - self.window_bytes) / self.window_bytes
        return change * 100 > self._debloating.threshold_percent
