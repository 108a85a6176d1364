"""Where a subtask's records come from: an input gate or a source, behind one contract.

A feed acts on nothing but its own input. It returns what the subtask has to do, in order; the
subtask does all of it before it calls the feed again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from pipelines.channels.channel import ChannelStatistics
from pipelines.connectors.source import Offsets
from pipelines.domain.checkpoint_failures import ChannelAlignment, CheckpointFailureReason
from pipelines.domain.elements import Barrier, Mark, Origins, Part
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Json
from pipelines.protocol.acking import Ids
from pipelines.protocol.watermarks import EventTimeMark
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords

IDLE_WAIT_MS = 500.0
"""A bound only: arrivals and mail wake a subtask at once."""


# For every batch: these take less time than frozen dataclasses.


class Process(NamedTuple):
    """A batch from an exchange goes into the head; `parts`: what was joined in it, in order."""

    port: int
    batch: pa.RecordBatch
    parts: Sequence[Part] = ()


class Emit(NamedTuple):
    """A batch of the source leaves it; `trees`: of each row, where records are followed."""

    batch: pa.RecordBatch
    origins: Origins
    offsets: Offsets | None
    trees: Ids | None


class PassTime(NamedTuple):
    marks: list[EventTimeMark]


class Count(NamedTuple):
    """Adds to the counters of the head."""

    counts: Mapping[str, int]


# For every barrier, or once.


@dataclass(frozen=True, slots=True)
class Broadcast:
    mark: Mark


@dataclass(frozen=True, slots=True)
class Cut:
    """Every input has delivered its barrier."""

    barrier: Barrier
    start_delay_ms: float
    alignment_ms: float = 0.0
    channels: tuple[ChannelAlignment, ...] = ()


@dataclass(frozen=True, slots=True)
class CutAhead:
    """The barrier overtakes; `KeepInFlight` or `GiveUp` has to follow."""

    barrier: Barrier
    start_delay_ms: float


@dataclass(frozen=True, slots=True)
class KeepInFlight:
    """All barriers are in: the records that were overtaken belong to the snapshot."""

    checkpoint_id: CheckpointId
    alignment_ms: float
    channels: tuple[ChannelAlignment, ...]
    recorded: tuple[InFlightRecords, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Drop what is being gathered for this checkpoint, or for an older one."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Decline:
    """It will not be cut here: inform the coordinator, and downstream through the stream."""

    checkpoint_id: CheckpointId
    why: str


@dataclass(frozen=True, slots=True)
class ReportDeclined:
    """Inform only the coordinator: downstream learns it from the stream."""

    checkpoint_id: CheckpointId
    reason: CheckpointFailureReason
    why: str


@dataclass(frozen=True, slots=True)
class ReportSourcesEnded:
    """The source has handed out everything."""


@dataclass(frozen=True, slots=True)
class AskForReservation:
    """Without another checkpoint this source stands still."""


@dataclass(frozen=True, slots=True)
class Reach:
    """A fault on purpose may hit here."""

    point: FaultPoint


CheckpointStep: TypeAlias = Cut | CutAhead | KeepInFlight | GiveUp | Decline | ReportDeclined
FeedEffect: TypeAlias = (
    Process
    | Emit
    | PassTime
    | Count
    | Broadcast
    | CheckpointStep
    | ReportSourcesEnded
    | AskForReservation
    | Reach
)
Effects: TypeAlias = list[FeedEffect]


class Feed(Protocol):
    """The subtask's thread calls it; no other thread may. Knows nothing of its subtask."""

    def advance(self) -> Effects | None:
        """Handle one element; None: there is nothing to do now."""
        ...

    def attend(self) -> Effects | None:
        """Handle what waits neither for records nor for credit; None: there is nothing."""
        ...

    def drain(self) -> Effects:
        """Event time ends: nothing more will be read."""
        ...

    def on_injected(self, barrier: Barrier) -> Effects: ...

    def on_completed(self, checkpoint_id: CheckpointId) -> Effects: ...

    def on_aborted(self, checkpoint_id: CheckpointId) -> Effects: ...

    def positions(self) -> Json: ...

    def counts_beyond_positions(self) -> Mapping[str, int]:
        """By counter, what was counted of records that a recovery to these positions reads again;
        negative: what was not counted yet of those before them."""
        ...

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
        """At most once: where a recovery from this checkpoint begins to read."""
        ...

    def replayed(self) -> Json:
        """How far the source's quarantine has been read again; None: it never was."""
        ...

    def watermark_ms(self) -> int | None: ...

    def queued(self) -> list[ChannelStatistics]: ...

    def pending_records(self) -> int | None:
        """Records that a source knows of and has not read; None: not known. From any thread."""
        ...

    def trouble(self) -> str:
        """The system of a source that does not answer; empty: all is well. From any thread."""
        ...

    def close(self) -> None:
        """Call once, when the subtask has ended."""
        ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def wait_ms(self) -> float: ...

    @property
    def due_ms(self) -> float | None:
        """The monotonic time from which `attend` has something to do by itself."""
        ...
