"""The credit of one channel: how much its writer may still send, and how long it has waited.

Owned by the writing end; the reading end gives credit back as it takes elements from its queue.
Source: Flink's credit-based flow control, counted in bytes instead of buffers.
"""

import threading
import time

import pyarrow as pa

from pipelines.channels.channel import ChannelClosed
from pipelines.domain.elements import Element, Records


class Credit:
    """Lets one writer pass while it has any credit left.

    Guarantee: what is in flight never exceeds the capacity by more than one element, and an
    element of any size passes an empty channel. Needs that credit comes back for every byte,
    though the reader may withhold less than a capacity of it to save messages.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._is_open = False
        self._capacity_bytes = 0
        self._available_bytes = 0
        self._closed_because: str | None = None
        self._waiting_since: float | None = None
        self._waited_s = 0.0

    def open(self, capacity_bytes: int) -> bool:
        """The reader is there and takes `capacity_bytes`; False if it has said so before."""
        with self._changed:
            if self._is_open:
                return False
            self._is_open = True
            self._capacity_bytes = self._available_bytes = capacity_bytes
            self._changed.notify_all()
            return True

    def try_give_back(self, returned_bytes: int) -> bool:
        """False, and nothing changes, if more comes back than was taken."""
        with self._changed:
            if self._available_bytes + returned_bytes > self._capacity_bytes:
                return False
            self._available_bytes += returned_bytes
            if self._waiting_since is not None:
                self._changed.notify_all()
            return True

    def close(self, reason: str) -> None:
        """Every present and later `take` raises ChannelClosed with the first reason given."""
        with self._changed:
            if self._closed_because is None:
                self._closed_because = reason
            self._changed.notify_all()

    def take(self, cost_bytes: int) -> None:
        """Wait for an open channel and, unless the element is free, for credit.

        Raises ChannelClosed.
        """
        with self._changed:
            if not self._may_pass(cost_bytes):
                self._wait_until_passable(cost_bytes)
            if self._closed_because is not None:
                raise ChannelClosed(self._closed_because)
            self._available_bytes -= cost_bytes

    def blocked_ms(self) -> float:
        """Includes the wait that is going on."""
        with self._changed:
            since = self._waiting_since
            ongoing_s = 0.0 if since is None else time.monotonic() - since
            return (self._waited_s + ongoing_s) * 1000

    def _may_pass(self, cost_bytes: int) -> bool:
        if self._closed_because is not None:
            return True
        return self._is_open and (cost_bytes == 0 or self._available_bytes > 0)

    def _wait_until_passable(self, cost_bytes: int) -> None:
        started = self._waiting_since = time.monotonic()
        self._changed.wait_for(lambda: self._may_pass(cost_bytes))
        self._waiting_since = None
        self._waited_s += time.monotonic() - started


def cost_of(element: Element) -> int:
    """The bytes that an element takes of its channel's capacity: nothing for a mark.

    The length of a batch as Arrow IPC, header included: the same on every kind of channel, six
    times cheaper to ask for than `nbytes`, and never zero, so empty batches are bounded too.
    """
    if not isinstance(element, Records):
        return 0
    return int(pa.ipc.get_record_batch_size(element.batch))
