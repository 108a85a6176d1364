"""The contract of channels: FIFO, loss-free, bounded in bytes, each with its own credit.

A subtask writes to `Output`s and reads from one `InputGate`. Within a slot, a channel is a queue of
the same objects; between slots, elements cross a socket as Arrow IPC. Elements that a full channel
does not accept wait at the writer, which notices and is never blocked. A held-back channel keeps
what has arrived in its queue, up to its capacity.

Source: Flink's credit-based flow control (FLIP-2/`RemoteInputChannel`) and `InputGate`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from pipelines.channels.coalescing import Coalescing, Run
from pipelines.channels.handshake import HANDSHAKE_TIMEOUT_MS
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
        """The bytes that the channel has accepted so far, as credit counts them. Thread-safe."""
        ...

    def send(self, element: Element) -> None:
        """Never blocks: what the channel does not accept waits here. Raises ChannelClosed.

        An element passes whole while any credit is left. So an element larger than the capacity
        passes too, and at most the capacity and one element are in flight. Marks (barrier,
        watermark, end) cost nothing. They wait only behind records, and until the channel has its
        reader.
        """
        ...

    def flush(self) -> bool:
        """Pass on what waits, as far as there is credit. Raises ChannelClosed.

        Returns True if nothing waits and the next element would pass at once. Until then, a writer
        takes no new input, so at most the output of one input waits here.
        """
        ...

    def overtake(self, barrier: Barrier) -> list[pa.RecordBatch]:
        """Send `barrier` ahead of everything that waits here.

        It replaces a waiting barrier of the same checkpoint. Returns the batches that it has
        overtaken, in order.
        """
        ...

    def holds_barrier(self, checkpoint_id: CheckpointId) -> bool:
        """True if this checkpoint's barrier still waits here, behind records."""
        ...

    def on_available(self, wake: Callable[[], None]) -> None:
        """Register `wake`, which must not block, and call it once.

        Any thread calls it whenever `flush` may return True again, and when the channel is closed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatistics:
    channel: ChannelId
    queued_records: int
    queued_bytes: int
    read_bytes: int  # since the channel began, as credit counts it
    held_back: bool
    window_bytes: int  # what it may hold at present
    queued_ms: float | None  # the time to consume what is queued; None if not measured


class HeldStep(NamedTuple):
    """How much a held-back channel had queued at one moment."""

    at_ms: float  # monotonic
    records: int
    size_bytes: int


class InputGate(Protocol):
    """The reading end of all input channels of one subtask; used by that subtask's thread only.

    `poll` serves open channels fairly; a held-back channel yields nothing until it is resumed.
    """

    def poll(self) -> tuple[ChannelId, Element] | None:
        """The next element, or None if no open channel has one. Never blocks.

        Raises ChannelClosed once the gate is closed.
        """
        ...

    def coalesce(self, coalescing: Coalescing) -> None:
        """Sets how `poll_run` joins what is queued."""
        ...

    def poll_run(self) -> Run | tuple[ChannelId, Mark] | None:
        """Like `poll`, for many records at once: those that are queued together, or the next mark.

        Call it only after `coalesce`. Also returns None while it waits for more records, until
        `due_ms`.
        """
        ...

    @property
    def due_ms(self) -> float | None:
        """When `poll_run` stops waiting (monotonic), or None if it does not wait."""
        ...

    def poll_announced(self) -> tuple[ChannelId, Barrier] | None:
        """The next barrier that has arrived, at any place in its channel's queue.

        It stays in its place, and `poll` returns it again. Call it only after `announce_barriers`.
        """
        ...

    def announce_barriers(self) -> None: ...

    def record(self, checkpoint_id: CheckpointId, channels: Collection[ChannelId]) -> None:
        """Start to keep the batches on `channels` before the barrier of `checkpoint_id`.

        These are the batches queued now and those that arrive before the barrier. `poll` delivers
        them, too. An older recording must have been taken.
        """
        ...

    def take_recorded(self) -> dict[ChannelId, list[pa.RecordBatch]]:
        """End the recording: for each recorded channel, its batches in order."""
        ...

    def hold_back(self, channel: ChannelId) -> None: ...

    def resume(self, channel: ChannelId) -> None: ...

    def measure_by(self, clock: Clock) -> None:
        """From now on, note how the held-back data grows."""
        ...

    def held_steps(self) -> dict[ChannelId, list[HeldStep]]:
        """What each held-back channel had queued at the beginning and after each arrival since.

        Call it only after `measure_by`.
        """
        ...

    def statistics(self) -> list[ChannelStatistics]:
        """Thread-safe."""
        ...

    def on_available(self, wake: Callable[[], None]) -> None:
        """Any thread calls `wake`, which must not block, whenever `poll` may have an element again.

        The reader then polls until None.
        """
        ...

    def close(self) -> None:
        """Writers get ChannelClosed; queued elements are dropped."""
        ...


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where the data port of a slot listens."""

    slot: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """The most that the network of one slot allocates, waits for and accepts."""

    max_frame_bytes: int = 512 << 20  # one serialized batch
    max_schema_bytes: int = 4 << 20
    max_channel_name_bytes: int = 4 << 10
    max_origin_bytes: int = 64 << 10  # names of sources and splits
    max_location_bytes: int = 8 << 10  # of a checkpoint; paths and keys of objects are shorter
    max_channels_per_connection: int = 1 << 16
    max_pending_handshakes: int = 64
    shortage_pause_ms: int = 100  # while a port has no files or threads for a caller
    connect_timeout_ms: int = 10_000
    handshake_timeout_ms: int = HANDSHAKE_TIMEOUT_MS
    unanswered_ms: int = 10_000  # after that, a silent peer's connection is lost; heartbeat.timeout
    close_timeout_ms: int = 1_000  # for the peer to receive what was sent before the end


MAX_QUEUED_MARKS = 100_000
"""Marks cost no credit, so their count bounds a channel whose reader has stalled. Adjacent marks of
event time merge in the queue, so only barriers can reach the bound."""
