"""The origin of a subtask's records: an input gate or a source, behind one contract.

A feed acts only on its own input. It returns what the subtask has to do, in order; the subtask does
all of it before it calls the feed again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from pipelines.channels.channel import ChannelStatistics
from pipelines.connectors.source import Offsets
from pipelines.domain.checkpoint_failures import ChannelAlignment, CheckpointFailureReason
from pipelines.domain.elements import Barrier, Mark
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import CheckpointId
from pipelines.domain.origins import Origins, Part
from pipelines.domain.snapshots import Json
from pipelines.protocol.acking import Ids
from pipelines.protocol.watermarks import EventTimeMark
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords

IDLE_WAIT_MS = 500.0
"""Only an upper bound: arrivals and mail wake a subtask at once."""


# Created for every batch: named tuples take less time than frozen dataclasses.


class Process(NamedTuple):
    """Give the head a batch from an exchange; `parts`: the batches that were joined in it."""

    port: int
    batch: pa.RecordBatch
    parts: Sequence[Part] = ()


class Emit(NamedTuple):
    """Emit a batch of the source; `trees`: the tree of each row, if ackers follow the records."""

    batch: pa.RecordBatch
    origins: Origins
    offsets: Offsets | None
    trees: Ids | None


class PassTime(NamedTuple):
    marks: list[EventTimeMark]


class Count(NamedTuple):
    """Add to the counters of the head."""

    counts: Mapping[str, int]


# Created for every barrier, or once.


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
    """The barrier overtakes records; `KeepInFlight` or `GiveUp` has to follow."""

    barrier: Barrier
    start_delay_ms: float


@dataclass(frozen=True, slots=True)
class KeepInFlight:
    """All barriers have arrived: the overtaken records belong to the snapshot."""

    checkpoint_id: CheckpointId
    alignment_ms: float
    channels: tuple[ChannelAlignment, ...]
    recorded: tuple[InFlightRecords, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Drop the snapshot being gathered, if it is for this checkpoint or an older one."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Decline:
    """This subtask will not cut: inform the coordinator, and downstream through the stream."""

    checkpoint_id: CheckpointId
    why: str


@dataclass(frozen=True, slots=True)
class ReportDeclined:
    """Inform only the coordinator: downstream learns of it from the stream."""

    checkpoint_id: CheckpointId
    reason: CheckpointFailureReason
    why: str


@dataclass(frozen=True, slots=True)
class ReportSourcesEnded:
    """The source has handed out all of its records."""


@dataclass(frozen=True, slots=True)
class AskForReservation:
    """This source waits for the next checkpoint."""


@dataclass(frozen=True, slots=True)
class Reach:
    """A fault on purpose may happen here."""

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
    """Supplies a subtask. Only the subtask's thread calls it. Knows nothing of its subtask."""

    def advance(self) -> Effects | None:
        """Handles one element. Returns None if there is nothing to do now."""
        ...

    def attend(self) -> Effects | None:
        """Handles work that waits neither for records nor for credit. Returns None without any."""
        ...

    def drain(self) -> Effects:
        """Ends event time: the source will read nothing more."""
        ...

    def on_injected(self, barrier: Barrier) -> Effects: ...

    def on_completed(self, checkpoint_id: CheckpointId) -> Effects: ...

    def on_aborted(self, checkpoint_id: CheckpointId) -> Effects: ...

    def positions(self) -> Json: ...

    def counts_beyond_positions(self) -> Mapping[str, int]:
        """Returns, for each counter, how much of it counts records behind the positions, which a
        recovery reads again. It is negative if records before the positions are not counted yet."""
        ...

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
        """Returns, in mode at most once, where a recovery from this checkpoint begins to read."""
        ...

    def replayed(self) -> Json:
        """Returns how far the source's quarantine was read again, or None if it never was."""
        ...

    def watermark_ms(self) -> int | None: ...

    def queued(self) -> list[ChannelStatistics]: ...

    def pending_records(self) -> int | None:
        """Returns how many records a source knows of but has not read, or None if it does not know.
        Any thread may call this."""
        ...

    def source_problem(self) -> str:
        """Returns a report that the source's system does not answer, or "" if it does. Any thread
        may call this."""
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
