"""The input gate of one subtask: a bounded queue per channel, served in turn.

Decides which channel is served next and when credit goes back. How elements get here (from the same
slot or over a socket) is up to the holder of an `Inlet`, which owns the counts of one channel and
decides nothing. `credit.Debloater` decides how much a channel may hold; the gate measures how long
its reader takes for what it gets.

A `ChannelRecorder` gathers the channel state of one checkpoint: it decides which batches precede
the barrier on each channel, those in the queue when recording began and those that arrive before
the barrier. Everything but `Inlet.offer` is called under the gate's lock.

Source: Flink's `SingleInputGate` (the list of channels with data) and `ChannelStatePersister`;
Chandy and Lamport 1985.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pipelines.channels.channel import (
    DEFAULT_CAPACITY_BYTES,
    MAX_QUEUED_MARKS,
    ChannelClosed,
    ChannelStatistics,
    HeldStep,
)
from pipelines.channels.coalescing import Coalescing, Run
from pipelines.channels.credit import SAMPLE_MS, Debloater, Debloating
from pipelines.domain.clock import Clock
from pipelines.domain.elements import (
    Barrier,
    Element,
    EndOfInput,
    Mark,
    Records,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import InvariantViolated, ProtocolError, check
from pipelines.domain.ids import ChannelId, CheckpointId

Offer = Callable[["Inlet", Element, int], None]
"""How an element enters the gate: its inlet, the element and its cost in bytes."""


class Inlet:
    """One channel's queue, as its writer sees it."""

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
        self.urgent_marks = 0  # all but watermarks
        self.read_bytes = 0
        self.credit_due_bytes = 0  # taken by the reader, not yet given back to the writer
        self.granted_bytes = granted_bytes  # what the writer has, what is queued and what is due
        self.held_back = False
        self.held_steps: list[HeldStep] = []  # one for each arrival, so no more than are queued
        self.is_ready = False  # is in the gate's list of channels to serve
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
        """Returns the credit that goes back now, so that `granted_bytes` becomes the window.

        A window shrinks as the reader takes what is queued: the surplus stays here. If it grows,
        the growth is due at once. Less than a step is not worth a message.
        """
        if self.granted_bytes != window_bytes:
            surplus = min(self.granted_bytes - window_bytes, self.credit_due_bytes)
            self.granted_bytes -= surplus  # negative if the window has grown
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

        Between two records or barriers only the newest watermark and the newest status count. So a
        channel whose records are all filtered out holds no more than these two.
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
    """Guarantee: `batches` has, for each recorded channel in order, exactly the batches before the
    barrier that the reader had not taken. Needs FIFO channels, and to see every element that
    arrives."""

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


GATE_CLOSED = "the reader of the channel has closed its gate"


class Writer(Protocol):
    """The writer of a channel, which waits until there is a gate for it."""

    def on_gate(self, gate: "Gate") -> None:
        """Attach to the gate. Any thread may call this, once."""
        ...

    def close(self, reason: str) -> None:
        """No gate will come."""
        ...


@dataclass(slots=True)
class _Pace:
    """How much each channel of one input may hold, by how fast the operator consumes it."""

    debloater: Debloater | None
    window_bytes: int
    step_bytes: int = 0
    size_bytes: int = 0  # of what the reader was given since the last sample,
    took_ms: float = 0.0  # and how long that has kept it busy so far

    def __post_init__(self) -> None:
        self.widen(self.window_bytes)

    def widen(self, window_bytes: int) -> None:
        self.window_bytes, self.step_bytes = window_bytes, _credit_step(window_bytes)

    def consumed_in_ms(self, queued_bytes: int) -> float | None:
        return None if self.debloater is None else self.debloater.consumed_in_ms(queued_bytes)


class Gate:
    """All inputs of one subtask; implements `InputGate`.

    Guarantee: FIFO per channel, nothing lost, and per channel at most `capacity_bytes` and one
    element in flight. Needs one writer per channel, which takes credit before it delivers.

    With `debloating`, a channel holds less: what its reader consumes in the target time. That needs
    a clock (`measure_by`) and a reader that takes runs. Each input of the operator is measured
    separately, because the sides of a join do not cost the same.
    """

    def __init__(
        self,
        channels: Sequence[ChannelId],
        capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
        debloating: Debloating | None = None,
        *,
        joins: bool = True,
    ) -> None:
        check(capacity_bytes > 0, "a channel has a capacity", capacity_bytes=capacity_bytes)
        check(len(set(channels)) == len(channels), "channels have distinct ids", ids=channels)
        self.capacity_bytes = capacity_bytes
        self._debloating, self._joins = debloating, joins
        self._pace = self._new_pace(len(channels))  # of the input that was served last
        self._paces = dict.fromkeys(channels, self._pace)
        self._since_ms, self._is_busy = 0.0, False  # when the reader last came, and if it has work
        self._lock = threading.Lock()
        self._inlets = {
            channel: Inlet(self.offer, channel, self._pace.window_bytes) for channel in channels
        }
        self._ready: deque[Inlet] = deque()  # open channels with something queued
        self._wake: Callable[[], None] = _wake_nobody
        self._is_closed = False
        self._announces = False
        self._announced: deque[tuple[ChannelId, Barrier]] = deque()
        self._recorder: ChannelRecorder | None = None
        self._clock: Clock | None = None
        self._coalescing: Coalescing | None = None
        self._filled_ms = 0.0  # when something came while nothing could be served
        self._due_ms: float | None = None  # while `poll_run` waits for more

    def _new_pace(self, channel_count: int) -> _Pace:
        if self._debloating is None:
            return _Pace(None, self.capacity_bytes)
        debloater = Debloater(
            self._debloating,
            channel_count=channel_count,
            capacity_bytes=self.capacity_bytes,
            joins=self._joins,
        )
        return _Pace(debloater, debloater.window_bytes)

    @property
    def channels(self) -> list[ChannelId]:
        return list(self._inlets)

    def attach(
        self,
        channel: ChannelId,
        *,
        return_credit: Callable[[int], object],
        on_close: Callable[[str], None],
    ) -> Inlet:
        """Make the caller the only writer of `channel`.

        Both callbacks come from the thread that polls or closes, without the gate's lock held.
        Raises ProtocolError if the channel has a writer, ChannelClosed if the gate is closed.
        """
        inlet = self._inlet(channel)
        with self._lock:
            if self._is_closed:
                raise ChannelClosed(GATE_CLOSED)
            if inlet.return_credit is not None:
                raise ProtocolError(f"channel {channel} already has a writer")
            inlet.return_credit, inlet.on_close = return_credit, on_close
        return inlet

    def offer(self, inlet: Inlet, element: Element, cost_bytes: int) -> None:
        """Implements `Inlet.offer`. Drops what arrives after the gate has closed."""
        with self._lock:
            if self._is_closed:
                return
            self._refuse_overrun(inlet, cost_bytes)
            inlet.enqueue(element, cost_bytes)
            if inlet.held_back and cost_bytes and self._clock is not None:
                inlet.add_step(self._clock.monotonic_ms())
            if self._recorder is not None:
                self._recorder.on_arrived(inlet.channel, element)
            was_idle = not self._ready
            self._list_if_servable(inlet)
            must_wake = was_idle and bool(self._ready)
            if must_wake and self._clock is not None:
                self._filled_ms = self._clock.monotonic_ms()
            if self._due_ms is not None and self._has_enough():
                self._due_ms, must_wake = None, True
            if self._announces and isinstance(element, Barrier):
                self._announced.append((inlet.channel, element))
                must_wake = True
        if must_wake:
            self._wake()

    def poll(self) -> tuple[ChannelId, Element] | None:
        """Raises ChannelClosed once the gate is closed."""
        with self._lock:
            if not self._ready:
                self._refuse_if_closed()
                return None
            inlet = self._ready.popleft()
            element = inlet.dequeue()
            inlet.is_ready = False
            self._list_if_servable(inlet)
            credit_bytes = self._credit_to_return(inlet)
        if credit_bytes and inlet.return_credit is not None:
            inlet.return_credit(credit_bytes)
        return inlet.channel, element

    def coalesce(self, coalescing: Coalescing) -> None:
        known = set(coalescing.inputs)
        check(known >= set(self._inlets), "each channel belongs to an input", known=known)
        check(coalescing.max_rows >= 1, "a run has rows", max_rows=coalescing.max_rows)
        ports = {channel: coalescing.inputs[channel].port for channel in self._inlets}
        paces = {port: self._new_pace(len(ports)) for port in set(ports.values())}
        with self._lock:
            self._coalescing = coalescing
            self._paces = {channel: paces[port] for channel, port in ports.items()}
            self._pace = next(iter(paces.values()))

    @property
    def due_ms(self) -> float | None:
        return self._due_ms

    def poll_run(self) -> Run | tuple[ChannelId, Mark] | None:
        """Raises ChannelClosed once the gate is closed."""
        if self._debloating is not None and self._clock is not None:
            self._measure(self._clock.monotonic_ms())
        with self._lock:
            if not self._ready:
                self._refuse_if_closed()
                return None
            rules = self._rules()
            inlet = self._ready[0]
            first, cost_bytes = inlet.elements[0]
            is_whole = isinstance(first, Records) and first.batch.num_rows >= rules.max_rows
            if is_whole:
                self._due_ms = None
            elif self._waits(rules):
                return None
            self._ready.popleft()
            inlet.dequeue()
            inlet.is_ready = False
            self._is_busy = True
            if not isinstance(first, Records):
                self._list_if_servable(inlet)
                return inlet.channel, first
            run = Run(rules, inlet.channel, first, cost_bytes)
            if is_whole:
                served = [inlet]
                self._extend_by_watermark(run, inlet)
            else:
                served = [inlet, *self._ready]
                self._extend(run, served)
            self._list_if_servable(inlet)
            self._pace = self._paces[inlet.channel]
            self._pace.size_bytes += run.size_bytes
            credits: list[tuple[Inlet, int]] = []
            for each in served:
                credit_bytes = self._credit_to_return(each)
                if credit_bytes:
                    credits.append((each, credit_bytes))
        for each, credit_bytes in credits:
            if each.return_credit is not None:
                each.return_credit(credit_bytes)
        return run

    def announce_barriers(self) -> None:
        with self._lock:
            self._announces = True

    def poll_announced(self) -> tuple[ChannelId, Barrier] | None:
        if not self._announced:  # without the lock: this runs before every element
            return None
        with self._lock:
            return self._announced.popleft()

    def record(self, checkpoint_id: CheckpointId, channels: Collection[ChannelId]) -> None:
        with self._lock:
            is_free = self._recorder is None
            check(is_free, "a gate records one checkpoint at a time", checkpoint_id=checkpoint_id)
            self._recorder = ChannelRecorder(checkpoint_id)
            for channel in channels:
                queued = (element for element, _ in self._inlets[channel].elements)
                self._recorder.begin(channel, queued)

    def take_recorded(self) -> dict[ChannelId, list[pa.RecordBatch]]:
        with self._lock:
            recorder, self._recorder = self._recorder, None
        return {} if recorder is None else recorder.batches

    def hold_back(self, channel: ChannelId) -> None:
        inlet = self._inlet(channel)
        with self._lock:
            inlet.held_back = True
            if self._clock is not None:
                inlet.begin_steps(self._clock.monotonic_ms())
            if inlet.is_ready:
                self._ready.remove(inlet)
                inlet.is_ready = False

    def resume(self, channel: ChannelId) -> None:
        inlet = self._inlet(channel)
        with self._lock:
            inlet.held_back = False
            self._list_if_servable(inlet)
            must_wake = inlet.is_ready
        if must_wake:
            self._wake()

    def measure_by(self, clock: Clock) -> None:
        with self._lock:
            self._clock = clock

    def held_steps(self) -> dict[ChannelId, list[HeldStep]]:
        with self._lock:
            held = [inlet for inlet in self._inlets.values() if inlet.held_back]
            return {inlet.channel: list(inlet.held_steps) for inlet in held}

    def statistics(self) -> list[ChannelStatistics]:
        with self._lock:
            return [self._statistics_of(inlet) for inlet in self._inlets.values()]

    def on_available(self, wake: Callable[[], None]) -> None:
        """The gate calls `wake` when it gets something to serve again, and when it closes."""
        with self._lock:
            self._wake = wake
            must_wake = bool(self._ready)
        if must_wake:
            wake()

    def close(self) -> None:
        with self._lock:
            writers = [] if self._is_closed else [i.on_close for i in self._inlets.values()]
            self._is_closed = True
            self._ready.clear()
            for inlet in self._inlets.values():
                inlet.drop_queue()
        for on_close in writers:
            if on_close is not None:
                on_close(GATE_CLOSED)
        self._wake()

    def _statistics_of(self, inlet: Inlet) -> ChannelStatistics:
        pace = self._paces[inlet.channel]
        return ChannelStatistics(
            channel=inlet.channel,
            queued_records=inlet.queued_records,
            queued_bytes=inlet.queued_bytes,
            read_bytes=inlet.read_bytes,
            held_back=inlet.held_back,
            window_bytes=pace.window_bytes,
            queued_ms=pace.consumed_in_ms(inlet.queued_bytes),
        )

    def _inlet(self, channel: ChannelId) -> Inlet:
        check(channel in self._inlets, "the channel is an input of this gate", channel=channel)
        return self._inlets[channel]

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ChannelClosed(GATE_CLOSED)

    def _refuse_overrun(self, inlet: Inlet, cost_bytes: int) -> None:
        # Credit that is due but not given back is not the writer's to spend.
        if cost_bytes and self._is_full(inlet):
            raise ProtocolError(f"channel {inlet.channel}: the writer has overrun its credit")
        if not cost_bytes and inlet.queued_marks >= MAX_QUEUED_MARKS:
            raise ProtocolError(f"channel {inlet.channel}: {MAX_QUEUED_MARKS} marks wait unread")

    def _credit_to_return(self, inlet: Inlet) -> int:
        pace = self._paces[inlet.channel]
        return inlet.credit_to_return(pace.window_bytes, pace.step_bytes)

    def _measure(self, now_ms: float) -> None:
        """The reader is back: what it was given last has kept it busy until now.

        That includes the time in which it waited for credit of its own. The time for a mark counts
        for the input that was served before it. The time without input counts for none.
        """
        pace = self._pace
        if self._is_busy:
            pace.took_ms += now_ms - self._since_ms
        self._since_ms, self._is_busy = now_ms, False
        if pace.debloater is None or pace.took_ms < SAMPLE_MS or not pace.size_bytes:
            return
        pace.debloater.on_consumed(pace.size_bytes, pace.took_ms, now_ms)
        pace.size_bytes, pace.took_ms = 0, 0.0
        if pace.debloater.window_bytes != pace.window_bytes:
            with self._lock:
                pace.widen(pace.debloater.window_bytes)

    def _rules(self) -> Coalescing:
        if self._coalescing is None:
            raise InvariantViolated("the rules for joining batches are set before a run is polled")
        return self._coalescing

    def _waits(self, rules: Coalescing) -> bool:
        """Returns True if more may come in time to be handled together with what is queued."""
        self._due_ms = None
        wait_ms = rules.wait_ms
        if not wait_ms or self._clock is None:
            return False
        due_ms = self._filled_ms + wait_ms
        if self._clock.monotonic_ms() >= due_ms or self._has_enough():
            return False
        self._due_ms = due_ms
        return True

    def _has_enough(self) -> bool:
        """Returns True if there is no point in waiting for more.

        There are the rows of a whole run, or a mark that must not wait, or a writer that waits.
        """
        queued_rows = 0
        for inlet in self._inlets.values():
            if inlet.held_back or inlet.urgent_marks or self._is_full(inlet):
                return True
            queued_rows += inlet.queued_records
        return queued_rows >= self._rules().max_rows

    def _is_full(self, inlet: Inlet) -> bool:
        return inlet.queued_bytes + inlet.credit_due_bytes >= inlet.granted_bytes

    def _extend_by_watermark(self, run: Run, inlet: Inlet) -> None:
        """Takes the watermark after the batch, to save a turn; adjacent ones are already merged."""
        if inlet.elements:
            element, cost_bytes = inlet.elements[0]
            if isinstance(element, Watermark) and run.try_take(inlet.channel, element, cost_bytes):
                inlet.dequeue()

    def _extend(self, run: Run, served: list[Inlet]) -> None:
        """Moves elements from these channels into the run, as far as it takes them."""
        for inlet in served:
            while inlet.elements:
                element, cost_bytes = inlet.elements[0]
                if not run.try_take(inlet.channel, element, cost_bytes):
                    break
                inlet.dequeue()
            if inlet.is_ready and not inlet.elements:
                self._ready.remove(inlet)
                inlet.is_ready = False

    def _list_if_servable(self, inlet: Inlet) -> None:
        if inlet.elements and not inlet.held_back and not inlet.is_ready:
            self._ready.append(inlet)
            inlet.is_ready = True


def _credit_step(window_bytes: int) -> int:
    """Small enough to keep the writer busy, large enough to avoid a credit message per batch."""
    return max(1, window_bytes // 4)


def _wake_nobody() -> None:
    """The placeholder until the subtask registers its `wake`."""
