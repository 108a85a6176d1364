"""The credit of one channel: how much its writer may still send.

Owned by the writing end; the reading end returns credit as it takes elements from its queue.
Source: Flink's credit-based flow control, counted in bytes instead of buffers.

The writing end of any channel: elements without credit wait in its outbox.

Subclasses decide how an element gets to the reader.

What a writer has sent and its channel has no credit for yet, in order.

Decides which elements wait and what a barrier overtakes; the caller's `pass_on` takes an element to
the reader. Used by the writer's thread only.

Source: Flink's `PipelinedSubpartition` with overdraft buffers.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

import pyarrow as pa

from pipelines.channels.channel import ChannelClosed
from pipelines.domain.elements import Barrier, Element, EndOfInput, Records
from pipelines.domain.errors import check
from pipelines.domain.ids import ChannelId, CheckpointId


class Credit:
    """Lets one writer pass while it has any credit left; never makes it wait.

    Guarantee: what is in flight never exceeds the capacity by more than one element, and an element
    of any size passes an empty channel. Needs that credit comes back for every byte. The reader may
    withhold less than a capacity of it, to save messages and to keep the channel shorter than it
    could be.
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
        """Any thread calls `wake` whenever an element may pass that could not before, and when the
        channel is closed. It must not block."""
        self._wake = wake
        wake()

    def open(self, capacity_bytes: int, granted_bytes: int | None = None) -> bool:
        """The reader is there, and its channel holds `capacity_bytes`. It grants `granted_bytes`
        now (None: all) and the rest later, or never. False if the channel was open already."""
        with self._lock:
            if self._is_open:
                return False
            self._capacity_bytes = capacity_bytes
            self._available_bytes = capacity_bytes if granted_bytes is None else granted_bytes
            self._is_open = True
        self._wake()
        return True

    def try_give_back(self, returned_bytes: int) -> bool:
        """False, without a change, if more comes back than was taken."""
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
        """True if an element passes now: any one while credit is left, a free one once it is open.

        Takes no lock, because it is called for every element: meanwhile the answer can only turn
        from no to yes, and then `wake` is called. Raises ChannelClosed.
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
    """Stands in until the writer registers its `wake`."""


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
        places = [i for i, e in enumerate(self._waiting) if _is_of(e, barrier.checkpoint_id)]
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
