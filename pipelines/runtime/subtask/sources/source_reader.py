"""What every reader of a source offers to its subtask, whatever the mode hands out and when.

`DirectReader` reads splits. The others hand out its records in another way: `ReservingReader` (at
most once), `SpoutReader` (acked) and `ReplayingReader` (quarantined records first).

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
    """Where the newest batch came from; `offsets` None: from first to next without gaps."""

    name: str
    first_offset: int
    next_offset: int
    offsets: Offsets | None = None


class SourceReader(Protocol):
    """Guarantee: `positions` lies behind every record that `next` has handed out and that a
    recovery need not read again.

    The subtask's thread calls it; no other thread may. A reader inherits what it does not need.
    """

    @property
    def split(self) -> SplitInWork | None:
        """Where the last batch of `next` came from; None: no batch was handed out yet."""
        ...

    @property
    def asked(self) -> SplitInWork | None:
        """The split that was asked last, and for which record."""
        ...

    @property
    def is_exhausted(self) -> bool:
        """True if there is nothing left to hand out, and nothing more will come."""
        ...

    @property
    def has_read_ahead(self) -> bool:
        """True if the last call of `next` read records, although it may not hand them out yet."""
        return False

    @property
    def trees(self) -> Ids | None:
        """The trees of the last batch of `next`, row by row; None: no acker follows it."""
        return None

    @property
    def due_ms(self) -> float | None:
        """The monotonic time from which `attend` has something to do by itself."""
        return None

    def next(self) -> pa.RecordBatch | None:
        """The next batch; None: nothing is due, nothing is there or nothing is left."""
        ...

    def attend(self) -> bool:
        """Handles what does not wait for records. False: there was nothing."""
        return False

    def take_marks(self) -> list[EventTimeMark]:
        """What has become known of event time since the last call, in order."""
        ...

    def take_counts(self) -> Mapping[str, int]:
        """What has happened to records since the last call, by the names of counters."""
        ...

    def take_wish(self) -> bool:
        """True if a checkpoint should come before its time; once, until one is cut or aborts."""
        return False

    def watermark_ms(self) -> int | None: ...

    def positions(self) -> Json: ...

    def counts_beyond_positions(self) -> Mapping[str, int]:
        """As of a feed."""
        return {}

    def confirm(self) -> None:
        """Call at a cut. Raises Rejected if a name stands for another split than the one read."""
        ...

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
        """Call at a cut. Where a recovery begins to read, if that is not at the positions."""
        return None

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        """Does nothing in a reader that hands records out at once."""
        return

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        """Does nothing in a reader that hands records out at once."""
        return

    def close(self) -> None:
        """Call once, when nothing is read any more."""
        ...


def sum_of(some: Mapping[str, int], more: Mapping[str, int]) -> Mapping[str, int]:
    if not some or not more:
        return some or more
    return {name: some.get(name, 0) + more.get(name, 0) for name in {**some, **more}}
