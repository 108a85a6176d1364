"""The contract of a source: an ordered sequence of splits, each read from an offset.

The engine owns positions: it deals splits to subtasks, stores (split, offset next to read) in every
checkpoint, and rewinds by opening a split at that offset. A reader keeps nothing that a checkpoint
does not know. Source: Flink's FLIP-27 (`SplitReader`), with a static enumeration.
"""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import pyarrow as pa


class Source(Protocol):
    """Immutable description; safe to build in every process."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def timestamp_column(self) -> str | None:
        """Event time, `timestamp[ms, UTC]`; None: the source has no event time."""
        ...

    @property
    def out_of_orderness_ms(self) -> int:
        """How far a record may lie behind the newest one read before it, within a split."""
        ...

    def validate(self) -> None:
        """Raises Rejected before anything starts: malformed, gone, or a column that does not fit.

        Called where a pipeline is submitted, not where one recovers: what has been read already
        need not be there any more.
        """
        ...

    def split_id(self, index: int) -> str | None:
        """Name of the `index`-th split (0, 1, ...); None past the end. May be endless.

        Later splits hold later event time, unless several are read side by side. The sequence
        never changes between restarts.
        """
        ...

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        """The records of a split from the `offset`-th on, in a stable order.

        A batch without rows says that there is nothing at the moment, but the split goes on.

        Raises:
            Rejected: the split cannot be read: malformed, a column missing, or gone (then the
                message says which range is gone). Names the file.
        """
        ...

    def event_time_ms(self, index: int, offset: int) -> int | None:
        """Event time of one record, to pace a replay; None past the end of the split."""
        ...


@runtime_checkable
class ConcurrentSplits(Protocol):
    """A source whose splits overlap in event time, or never end, as the partitions of a log do."""

    @property
    def concurrent_splits(self) -> int:
        """How many splits one subtask reads side by side; event time is the slowest one's."""
        ...


@runtime_checkable
class VersionedSplits(Protocol):
    """A source that can tell whether a split still holds the records that were read from it.

    What it says is stored with the position and compared when a run goes back there, so that a
    split that was replaced is refused by name instead of being read from the middle of other data.
    """

    def split_version(self, index: int) -> str:
        """Short text, equal as long as the records are. Raises Rejected when the split is gone."""
        ...
