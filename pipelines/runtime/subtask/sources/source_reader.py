"""The interface of all readers of a source. The mode decides what a reader hands out, and when.

`DirectReader` reads splits. The others hand out its records differently: `ReservingReader` (at most
once), `SpoutReader` (acked) and `ReplayingReader` (quarantined records first).

Source: Flink, `SourceReader` of FLIP-27.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

from pipelines.connectors.source import Offsets
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Json
from pipelines.protocol.acking import Ids
from pipelines.protocol.watermarks import EventTimeMark

NO_COUNTS: Mapping[str, int] = {}


class SplitInWork(NamedTuple):  # two for every batch: it takes less time than a frozen dataclass
    """The origin of the newest batch; `offsets` is None if it has no gaps from first to next."""

    name: str
    first_offset: int
    next_offset: int
    offsets: Offsets | None = None


class SourceReader(Protocol):
    """Guarantee: `positions` lies behind every record that `next` has handed out and that a
    recovery need not read again.

    Only the subtask's thread calls it. A reader inherits the methods that it does not need.
    """

    @property
    def split(self) -> SplitInWork | None:
        """The origin of the last batch of `next`; None if no batch was handed out yet."""
        ...

    @property
    def requested(self) -> SplitInWork | None:
        """The split that the reader asked last, and the record that it asked for."""
        ...

    @property
    def is_exhausted(self) -> bool:
        """True if no record is left to hand out, and none will come."""
        ...

    @property
    def has_read_ahead(self) -> bool:
        """True if the last call of `next` read records, although it may not hand them out yet."""
        return False

    @property
    def trees(self) -> Ids | None:
        """The trees of the last batch of `next`, row by row; None if no acker follows it."""
        return None

    @property
    def due_ms(self) -> float | None:
        """The monotonic time from which `attend` has something to do by itself."""
        return None

    def next(self) -> pa.RecordBatch | None:
        """Returns the next batch, or None if none is due, none has come yet or none is left."""
        ...

    def attend(self) -> bool:
        """Handles work that does not wait for records. Returns False if there was none."""
        return False

    def take_marks(self) -> list[EventTimeMark]:
        """Returns the event time that has become known since the last call, in order."""
        ...

    def take_counts(self) -> Mapping[str, int]:
        """Returns the counts of records since the last call, by the names of counters."""
        ...

    def take_wish(self) -> bool:
        """Returns True if a checkpoint should come early; only once until one is cut or aborts."""
        return False

    def watermark_ms(self) -> int | None: ...

    def positions(self) -> Json: ...

    def counts_beyond_positions(self) -> Mapping[str, int]:
        """See `Feed.counts_beyond_positions`."""
        return {}

    def confirm(self) -> None:
        """Call at a cut. Raises Rejected if a name now belongs to another split than was read."""
        ...

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
        """Call at a cut. Returns where a recovery begins to read, if not at the positions."""
        return None

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        """Does nothing in a reader that hands records out at once."""
        return

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        """Does nothing in a reader that hands records out at once."""
        return

    def close(self) -> None:
        """Call once, when the reader is no longer needed."""
        ...


def sum_of(some: Mapping[str, int], more: Mapping[str, int]) -> Mapping[str, int]:
    if not some or not more:
        return some or more
    return {name: some.get(name, 0) + more.get(name, 0) for name in {**some, **more}}
