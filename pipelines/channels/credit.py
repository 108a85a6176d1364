"""The credit of one channel: how much its writer may still send.

Owned by the writing end; the reading end returns credit as it takes elements from its queue.
Source: Flink's credit-based flow control, counted in bytes instead of buffers.
"""

import threading
from collections.abc import Callable

import pyarrow as pa

from pipelines.channels.channel import ChannelClosed
from pipelines.domain.elements import Element, Records


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
