"""The contract of channels: FIFO, loss-free, bounded in bytes, each with its own credit.

A subtask writes to `Output`s and reads from one `InputGate`. Within a slot a channel is a queue of
the same objects; between slots elements cross a socket as Arrow IPC. What a full channel does not
take waits at its writer, who is told and goes on living. A held-back channel keeps what arrived in
its queue, up to its capacity.

Source: Flink's credit-based flow control (FLIP-2/`RemoteInputChannel`) and `InputGate`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from pipelines.channels.coalescing import Coalescing, Run
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Barrier, Element, Mark
from pipelines.domain.ids import ChannelId, CheckpointId

DEFAULT_CAPACITY_BYTES = 8 << 20


class ChannelClosed(Exception):
    """The other end is gone or the attempt is over; the subtask ends."""


class Output(Protocol):
    """The writing end of one channel; used by one thread."""

    channel: ChannelId

    @property
    def sent_bytes(self) -> int:
        """What the channel has taken since it began, as credit counts it. Thread-safe."""
        ...

    def send(self, element: Element) -> None:
        """Never blocks: what the channel cannot take waits here. Raises ChannelClosed.

        An element passes whole while any credit is left, so one larger than the capacity passes
        too, and in flight is at most the capacity and one element. Marks (barrier, watermark, end)
        count nothing and wait only behind records, and until the channel has its reader.
        """
        ...

    def flush(self) -> bool:
        """Pass on what waits, as far as there is credit. Raises ChannelClosed.

        True: nothing waits, and the next element would pass at once. A writer takes no new input
        before that, so what waits here is bounded by the output of one input.
        """
        ...

    def overtake(self, barrier: Barrier) -> list[pa.RecordBatch]:
        """Send `barrier` ahead of all that waits here; one of its checkpoint that waits is
        replaced by it. Returns the batches that it has overtaken, in order."""
        ...

    def holds_barrier(self, checkpoint_id: CheckpointId) -> bool:
        """The barrier of this checkpoint still waits here, behind records."""
        ...

    def on_available(self, wake: Callable[[], None]) -> None:
        """`wake` is called from any thread whenever `flush` may answer True again, and when the
        channel is closed; and once at once. It must not block."""
        ...


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    channel: ChannelId
    queued_records: int
    queued_bytes: int
    read_bytes: int  # since the channel began, as credit counts it
    held_back: bool
    window_bytes: int  # what it may hold at present
    queued_ms: float | None  # what is queued takes the reader so long; None: not measured


class HeldStep(NamedTuple):
    """What a held-back channel had queued at a moment."""

    at_ms: float  # monotonic
    records: int
    size_bytes: int


class InputGate(Protocol):
    """The reading end of all input channels of one subtask; used by that subtask's thread only.

    `poll` serves open channels fairly; a held-back channel gives nothing until it is resumed.
    """

    def poll(self) -> tuple[ChannelId, Element] | None:
        """The next element, or None when no open channel has one. Never blocks.

        Raises ChannelClosed once the gate is closed.
        """
        ...

    def coalesce(self, coalescing: Coalescing) -> None:
        """How `poll_run` joins what is queued."""
        ...

    def poll_run(self) -> Run | tuple[ChannelId, Mark] | None:
        """`poll` for many records at once: those that are queued together, or the next mark.

        Only after `coalesce`. None, too, while it waits for more records to come, until `due_ms`.
        """
        ...

    @property
    def due_ms(self) -> float | None:
        """When `poll_run` will wait no longer, monotonic; None: it does not wait."""
        ...

    def poll_announced(self) -> tuple[ChannelId, Barrier] | None:
        """The next barrier that has arrived, wherever it stands in its channel's queue.

        It stays in its place and `poll` gives it again. Only after `announce_barriers`.
        """
        ...

    def announce_barriers(self) -> None: ...

    def record(self, checkpoint_id: CheckpointId, channels: Collection[ChannelId]) -> None:
        """Keep what is queued on `channels` before the barrier of `checkpoint_id`, and what
        arrives before it, besides delivering it. Ends an older recording."""
        ...

    def take_recorded(self) -> dict[ChannelId, list[pa.RecordBatch]]:
        """End the recording: for each channel that was recorded, the batches in order."""
        ...

    def hold_back(self, channel: ChannelId) -> None: ...

    def resume(self, channel: ChannelId) -> None: ...

    def measure_by(self, clock: Clock) -> None:
        """Note from now on how what is held back grows."""
        ...

    def held_steps(self) -> dict[ChannelId, list[HeldStep]]:
        """Of each channel that is held back: what was queued when that began, and after each
        arrival since. Only after `measure_by`."""
        ...

    def statistics(self) -> list[ChannelStatistics]:
        """Thread-safe."""
        ...

    def on_available(self, wake: Callable[[], None]) -> None:
        """`wake` is called from any thread whenever `poll` has become able to answer: poll until
        None after it. It must not block."""
        ...

    def close(self) -> None:
        """Writers get ChannelClosed; what is queued is dropped."""
        ...


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where the data port of a slot listens."""

    slot: int
    host: str
    port: int
