"""One channel's queue in a gate: what is in it, what is due back, who writes it, what a cut takes.

An `Inlet` owns the counts and decides nothing. A `ChannelRecorder` gathers the channel state of one
checkpoint: it decides which batches precede the barrier on each channel, those in the queue when
recording began and those that arrive before the barrier. Everything but `Inlet.offer` is called
under the gate's lock.

Source: Chandy and Lamport 1985; Flink's `ChannelStatePersister`.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pipelines.channels.channel import HeldStep
from pipelines.domain.elements import (
    Barrier,
    Element,
    EndOfInput,
    Records,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import check
from pipelines.domain.ids import ChannelId, CheckpointId

if TYPE_CHECKING:
    import pyarrow as pa


Offer = Callable[["Inlet", Element, int], None]
"""The gate's way in: inlet, element and its cost in bytes."""


class Inlet:
    """One channel's queue, from the side of its writer."""

    __slots__ = (
        "_offer",
        "channel",
        "credit_due_bytes",
        "elements",
        "granted_bytes",
        "held_back",
        "held_steps",
        "is_ready",
        "on_close",
        "queued_bytes",
        "queued_marks",
        "queued_records",
        "read_bytes",
        "return_credit",
        "urgent_marks",
    )

    def __init__(self, offer: Offer, channel: ChannelId, granted_bytes: int) -> None:
        self._offer = offer
        self.channel = channel
        self.elements: deque[tuple[Element, int]] = deque()
        self.queued_records = self.queued_bytes = self.queued_marks = 0
        self.urgent_marks = 0  # those that are more than a watermark
        self.read_bytes = 0
        self.credit_due_bytes = 0  # taken by the reader, not yet given back to the writer
        self.granted_bytes = granted_bytes  # the writer's, with what is queued and what is due
        self.held_back = False
        self.held_steps: list[HeldStep] = []  # one for each arrival, so no more than are queued
        self.is_ready = False  # stands in the gate's list of channels to serve
        self.return_credit: Callable[[int], object] | None = None
        self.on_close: Callable[[str], None] | None = None

    def offer(self, element: Element, cost_bytes: int) -> None:
        """Never blocks. Raises ProtocolError if the writer had no credit for it."""
        self._offer(self, element, cost_bytes)

    def enqueue(self, element: Element, cost_bytes: int) -> None:
        if isinstance(element, Records):
            self.queued_records += element.batch.num_rows
            self.queued_bytes += cost_bytes
        else:
            if isinstance(element, _EVENT_TIME):
                self._forget_outdated(type(element))
            self.queued_marks += 1
            self.urgent_marks += not isinstance(element, Watermark)
        self.elements.append((element, cost_bytes))

    def begin_steps(self, now_ms: float) -> None:
        self.held_steps = []
        self.add_step(now_ms)

    def add_step(self, now_ms: float) -> None:
        self.held_steps.append(HeldStep(now_ms, self.queued_records, self.queued_bytes))

    def dequeue(self) -> Element:
        element, cost_bytes = self.elements.popleft()
        if isinstance(element, Records):
            self.queued_records -= element.batch.num_rows
            self.queued_bytes -= cost_bytes
            self.read_bytes += cost_bytes
            self.credit_due_bytes += cost_bytes
        else:
            self.queued_marks -= 1
            self.urgent_marks -= not isinstance(element, Watermark)
        return element

    def credit_to_return(self, window_bytes: int, step_bytes: int) -> int:
        """What of the credit goes back now, so that `granted_bytes` becomes the window.

        A smaller window is reached as the reader takes what is queued: what is too much stays
        here. Less than a step is not worth a message, unless the window has grown.
        """
        if self.granted_bytes != window_bytes:
            surplus = min(self.granted_bytes - window_bytes, self.credit_due_bytes)
            self.granted_bytes -= surplus  # below zero: the window has grown
            self.credit_due_bytes -= surplus
        if self.credit_due_bytes < step_bytes:
            return 0
        credit_bytes, self.credit_due_bytes = self.credit_due_bytes, 0
        return credit_bytes

    def drop_queue(self) -> None:
        self.elements.clear()
        self.queued_records = self.queued_bytes = self.queued_marks = self.urgent_marks = 0
        self.is_ready = False

    def _forget_outdated(self, kind: type[Element]) -> None:
        """Drop the mark of this kind at the end of the queue: a newer one is about to follow it.

        Between two records or barriers only the newest watermark and the newest status count, so
        that a channel whose records are all filtered out holds no more than these two.
        """
        if not self.elements or isinstance(self.elements[-1][0], Records):
            return
        for place in (-1, -2):
            if len(self.elements) < -place:
                return
            last, _ = self.elements[place]
            if isinstance(last, kind):
                del self.elements[place]
                self.queued_marks -= 1
                self.urgent_marks -= kind is not Watermark
                return
            if not isinstance(last, _EVENT_TIME):
                return


_EVENT_TIME = (Watermark, WatermarkStatus)


class ChannelRecorder:
    """Guarantee: of each recorded channel, in order, exactly the batches before the barrier that
    the reader had not taken. Needs FIFO channels, and to see every element that arrives."""

    def __init__(self, checkpoint_id: CheckpointId) -> None:
        self._checkpoint_id = checkpoint_id
        self._awaited: set[ChannelId] = set()
        self.batches: dict[ChannelId, list[pa.RecordBatch]] = {}

    def begin(self, channel: ChannelId, queued: Iterable[Element]) -> None:
        check(channel not in self.batches, "a channel is recorded once", channel=channel)
        self.batches[channel] = []
        self._awaited.add(channel)
        for element in queued:
            self.on_arrived(channel, element)

    def on_arrived(self, channel: ChannelId, element: Element) -> None:
        if channel not in self._awaited:
            return
        match element:
            case Records(batch):
                self.batches[channel].append(batch)
            case Barrier(checkpoint_id=checkpoint_id) if checkpoint_id == self._checkpoint_id:
                self._awaited.remove(channel)
            case EndOfInput():
                self._awaited.remove(channel)
