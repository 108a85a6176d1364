"""The credit of one channel: how much its writer may still send, and how much its reader grants.

The writing end owns its credit. Elements that a writer has sent and has no credit for yet wait in
an `Outbox`, in order. `Outbox` decides what a barrier overtakes. Subclasses of `CreditedOutput`
decide how an element gets to the reader, which returns credit as it takes elements from its queue.

`Debloater` bounds what the channels of one gate may hold, so that their reader soon gets to a
barrier, which waits behind what is queued before it. A bound in bytes says nothing about how long
that takes: one operator consumes eight megabytes in a tenth of a second, another in minutes. So the
gate measures how fast its operator consumes and announces only as much credit as the operator
consumes within a target time. A debloater only calculates: the gate measures, and withholds the
credit.

Source: Flink's credit-based flow control, counted in bytes instead of buffers, and
`PipelinedSubpartition` with overdraft buffers; buffer debloating (FLIP-183, `BufferDebloater`,
`ThroughputCalculator`). Flink shrinks its buffers, we shrink the credit. Telling the fixed cost of
a batch apart from the cost of its bytes is ours: Flink's operators know no batches.
"""

import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from pipelines.channels.channel import ChannelClosed
from pipelines.domain.elements import Barrier, Element, EndOfInput, Records
from pipelines.domain.errors import check
from pipelines.domain.ids import ChannelId, CheckpointId


class Credit:
    """Lets one writer pass while it has any credit left; never makes it wait.

    Guarantee: what is in flight never exceeds the capacity by more than one element, and an element
    of any size passes an empty channel. Needs credit to come back for every byte. The reader may
    withhold credit, though never the whole capacity, to save messages and to keep the channel
    shorter than it could be.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = False
        self._capacity_bytes = 0
        self._available_bytes = 0
        self.taken_bytes = 0  # since the channel began; any thread may read it
        self._closed_because: str | None = None
        self._wake: Callable[[], None] = _wake_nobody

    def on_available(self, wake: Callable[[], None]) -> None:
        """Registers `wake`, which must not block, and calls it once.

        Any thread calls it whenever an element may pass that could not before, and when the channel
        is closed.
        """
        self._wake = wake
        wake()

    def open(self, capacity_bytes: int, granted_bytes: int | None = None) -> bool:
        """Opens a channel of `capacity_bytes`, because its reader is there.

        Returns False if it was open already. The reader grants `granted_bytes` now (None means all)
        and the rest later, or never.
        """
        with self._lock:
            if self._is_open:
                return False
            self._capacity_bytes = capacity_bytes
            self._available_bytes = capacity_bytes if granted_bytes is None else granted_bytes
            self._is_open = True
        self._wake()
        return True

    def try_give_back(self, returned_bytes: int) -> bool:
        """Returns False, and changes nothing, if more comes back than was taken."""
        with self._lock:
            if self._available_bytes + returned_bytes > self._capacity_bytes:
                return False
            was_exhausted = self._available_bytes <= 0
            self._available_bytes += returned_bytes
            must_wake = was_exhausted and self._available_bytes > 0
        if must_wake:
            self._wake()
        return True

    def close(self, reason: str) -> None:
        """Every present and later writer gets ChannelClosed with the first reason given."""
        with self._lock:
            if self._closed_because is None:
                self._closed_because = reason
        self._wake()

    def lets_pass(self, *, is_free: bool) -> bool:
        """True if an element passes now: any while credit is left, a free one once it is open.

        Takes no lock, because it is called for every element. Meanwhile the answer can only turn
        from False to True, and then `wake` is called. Raises ChannelClosed.
        """
        if self._closed_because is not None:
            raise ChannelClosed(self._closed_because)
        return self._is_open and (is_free or self._available_bytes > 0)

    def take(self, cost_bytes: int) -> None:
        """Call it after `lets_pass`."""
        with self._lock:
            self._available_bytes -= cost_bytes
            self.taken_bytes += cost_bytes


def cost_of(element: Element) -> int:
    """The bytes that an element takes of its channel's capacity: nothing for a mark.

    It is the length of a batch as Arrow IPC, with header: the same on every kind of channel, six
    times cheaper than `nbytes`, and never zero, so empty batches are bounded too.
    """
    if not isinstance(element, Records):
        return 0
    return int(pa.ipc.get_record_batch_size(element.batch))


def _wake_nobody() -> None:
    """The placeholder until the writer registers its `wake`."""


class Outbox:
    """Guarantee: first in, first out, except for barriers that overtake; never blocks.

    Needs a writer that takes no new input while `flush` returns False; then the output of at most
    one input waits.
    """

    def __init__(
        self, channel: ChannelId, credit: Credit, pass_on: Callable[[Element], None]
    ) -> None:
        self._channel = channel
        self._credit = credit
        self._pass_on = pass_on
        self._waiting: deque[Element] = deque()
        self._has_ended = False

    def send(self, element: Element) -> None:
        """Pass the element on, or keep it until there is credit. Raises ChannelClosed."""
        check(not self._has_ended, "nothing follows the end of input", channel=self._channel)
        self._has_ended = isinstance(element, EndOfInput)
        self._pass_on_waiting()
        if self._waiting or not self._credit.lets_pass(is_free=not isinstance(element, Records)):
            self._waiting.append(element)
        else:
            self._pass_on(element)

    def flush(self) -> bool:
        if self._waiting:
            self._pass_on_waiting()
        if self._waiting:
            return False
        # A reader that has taken the end may be gone.
        return self._has_ended or self._credit.lets_pass(is_free=False)

    def overtake(self, barrier: Barrier) -> list[pa.RecordBatch]:
        """Put `barrier`, or a waiting one of the same checkpoint, ahead of everything that waits.

        Returns the batches that it has overtaken: the channel's state on this side.
        """
        check(not self._has_ended, "no barrier overtakes the end of input", channel=self._channel)
        places = [i for i, e in enumerate(self._waiting) if _is_of(e, barrier.checkpoint_id)]
        check(len(places) <= 1, "a channel has each barrier once", channel=self._channel)
        behind = list(self._waiting)[: places[0]] if places else list(self._waiting)
        for place in reversed(places):
            del self._waiting[place]
        self._waiting.appendleft(barrier)
        self._pass_on_waiting()
        return [element.batch for element in behind if isinstance(element, Records)]

    def holds_barrier(self, checkpoint_id: CheckpointId) -> bool:
        """True if the barrier still waits behind records that have no credit."""
        return any(_is_of(element, checkpoint_id) for element in self._waiting)

    def _pass_on_waiting(self) -> None:
        while self._waiting:
            is_free = not isinstance(self._waiting[0], Records)
            if not self._credit.lets_pass(is_free=is_free):
                return
            self._pass_on(self._waiting.popleft())


def _is_of(element: Element, checkpoint_id: CheckpointId) -> bool:
    return isinstance(element, Barrier) and element.checkpoint_id == checkpoint_id


class CreditedOutput(ABC):
    """Implements `Output`; used only by the subtask thread that writes the channel."""

    def __init__(self, channel: ChannelId) -> None:
        self.channel = channel
        self.credit = Credit()
        self._outbox = Outbox(channel, self.credit, self._pass_on)

    @property
    def sent_bytes(self) -> int:
        return self.credit.taken_bytes

    def send(self, element: Element) -> None:
        """Elements also wait until the channel has its reader."""
        self._outbox.send(element)

    def flush(self) -> bool:
        return self._outbox.flush()

    def overtake(self, barrier: Barrier) -> list[pa.RecordBatch]:
        return self._outbox.overtake(barrier)

    def holds_barrier(self, checkpoint_id: CheckpointId) -> bool:
        return self._outbox.holds_barrier(checkpoint_id)

    def on_available(self, wake: Callable[[], None]) -> None:
        self.credit.on_available(wake)

    @abstractmethod
    def _pass_on(self, element: Element) -> None:
        """Take the element's credit, which is available, and hand it over. Raises ChannelClosed."""


INITIAL_WINDOW_BYTES = 16 << 10
"""The window of a channel until the first measurement of how fast its reader consumes."""

MIN_WINDOW_BYTES = 1 << 10
"""A batch of any size passes while any credit is left, so no window is too small for one."""

ROUND_TRIPS_MS = 20.0
"""A window lasts at least this long, however many channels share the target: two round trips of the
credit to the writer and back, with the delays of a busy machine."""

SAMPLE_MS = 5.0
"""Batches that take less time are measured together, because a single one says little."""

_MOST_OVERHEAD = 4.0
"""A byte costs at least the average divided by this: the rest may be the fixed cost of a batch. The
bound limits the effect of a wrong estimate."""

_LEAST_SPREAD = 0.05
"""If sizes vary less than this (variance by squared mean), the two costs cannot be told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Debloating:
    """Flink's options `taskmanager.network.memory.buffer-debloat.*`."""

    target_ms: float
    period_ms: float = 200.0  # between two changes
    samples: int = 20  # how many periods the average looks back
    threshold_percent: int = 25  # a smaller change is ignored

    @property
    def memory_ms(self) -> float:
        """The time after which a measurement has lost two thirds of its weight."""
        return self.period_ms * self.samples / 2


class Debloater:
    """Sets the window of each channel of one gate: what its writer may have in flight.

    Guarantee: the window is never below `MIN_WINDOW_BYTES` nor above the capacity, and what all
    windows allow is consumed within the target, once the measurements show how fast that is. Needs
    to be given the time that batches took, without the time spent waiting for input.
    """

    def __init__(
        self, debloating: Debloating, *, channel_count: int, capacity_bytes: int, joins: bool
    ) -> None:
        """`joins` means that the operator handles everything queued as one batch."""
        check(channel_count > 0, "a gate that is measured has channels")
        self._debloating = debloating
        self._channel_count = channel_count
        self._capacity_bytes = capacity_bytes
        self._joins = joins
        self._changed_ms = -math.inf
        self._weight = self._bytes = self._ms = 0.0  # of the batches, which count less with age
        self._bytes_squared = self._bytes_by_ms = 0.0
        self.window_bytes = min(INITIAL_WINDOW_BYTES, capacity_bytes)

    def on_consumed(self, size_bytes: int, took_ms: float, now_ms: float) -> None:
        """The operator has handled a batch of this size, and everything that came of it."""
        self._add(size_bytes, max(0.0, took_ms))
        if now_ms - self._changed_ms < self._debloating.period_ms:
            return
        wanted_bytes = self._wanted_bytes()
        if self._is_a_change(wanted_bytes):
            self.window_bytes = wanted_bytes
            self._changed_ms = now_ms

    def consumed_in_ms(self, queued_bytes: int) -> float | None:
        """Returns how long the operator takes for this, or None if it has consumed nothing yet."""
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
        """Returns the cost of one more byte.

        An operator that handles everything queued together pays the fixed cost of a batch once, and
        a smaller window would not reduce it. A line through the measurements leaves it out.
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
