"""The contract of a source: splits, each read from an offset, and where a run begins in a log.

The engine owns positions: it deals splits to subtasks, stores (split, offset to read next) in every
checkpoint, and rewinds by opening a split at that offset. A reader keeps nothing that a checkpoint
lacks. The splits are either a sequence that never changes (`Source`), or known by name and found
while the run goes on (`GrowingSource`). Source: Flink's FLIP-27 (`SplitReader`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import FailureKind, Rejected

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LoggedRecords:
    """Records of a log with gaps: `offsets` ascends and holds the offset of each record.

    A position is one behind the offset of the last record handed out, or `end` if the source knows
    that nothing lies between. A batch without rows may also advance a position in this way.
    `version`: the split's once all of these are handed out; None: unchanged.
    """

    records: pa.RecordBatch
    offsets: Offsets
    end: int | None = None
    version: str | None = None


class MalformedRecord(Rejected):
    """A record that a source cannot read. All records before it were handed out; to skip it, read
    on from the offset behind it, in a new iterator.

    `row` is its place among the rows to decode, `text` its content.
    """

    kind: ClassVar[FailureKind] = FailureKind.MALFORMED_RECORD

    def __init__(self, sentence: str, *, row: int, offset: int, text: bytes) -> None:
        super().__init__(sentence)
        self.row = row
        self.offset = offset
        self.text = text.decode(errors="backslashreplace")


class UnreadableText(Exception):
    """Text that a source could not read, and cannot read now; the message says why, in a clause."""


Batch: TypeAlias = pa.RecordBatch | LoggedRecords
"""The offsets of a plain batch follow each other without gaps."""


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

        Called when a pipeline is submitted, not when it recovers: what has been read already may be
        gone by then.
        """
        ...

    def split_id(self, index: int) -> str | None:
        """Name of the `index`-th split (0, 1, ...); None past the end. May be endless.

        Later splits hold later event time, unless several are read side by side. The sequence
        never changes between restarts.
        """
        ...

    def read(self, index: int, offset: int) -> Iterator[Batch]:
        """The records of a split from `offset` on, in a stable order.

        A batch without rows means that there is nothing at the moment, but the split goes on.

        Raises Rejected when the split cannot be read: malformed, a column missing, or gone. The
        message names the file, and the missing range. Raises MalformedRecord when one record cannot
        be read, and the source knows which.
        """
        ...

    def event_time_ms(self, index: int, offset: int) -> int | None:
        """Event time of one record, to pace a replay; None past the end of the split."""
        ...


@runtime_checkable
class ConcurrentSplits(Protocol):
    """A source whose splits overlap in event time, or never end, as a log's partitions do."""

    @property
    def concurrent_splits(self) -> int:
        """How many splits one subtask reads side by side; the slowest one sets event time."""
        ...


@runtime_checkable
class VersionedSplits(Protocol):
    """A source that can tell if a split still holds the records that were read from it.

    The version is stored with the position and compared when a run is restored there. So a split
    that was replaced is refused by name, instead of being read from the middle of other data.
    """

    def split_version(self, index: int) -> str:
        """Short text, equal as long as the records are. Raises Rejected if the split is gone."""
        ...


@runtime_checkable
class ReadsText(Protocol):
    """A source that can convert the text of a `MalformedRecord` to a row, once its schema or its
    format has changed. For other sources, that text has to be a JSON object of the columns."""

    def row_of_text(self, text: str) -> pa.RecordBatch:
        """One row. Raises UnreadableText."""
        ...


@runtime_checkable
class ReadOnce(Protocol):
    """A source that may be unable to supply its records again, such as a socket.

    A failure loses such records, so a pipeline that reads it is at most once.
    """

    @property
    def reads_once(self) -> bool: ...


class SplitReader(Protocol):
    """Reads any number of splits for one subtask, by its thread only."""

    def read(self, split: SplitProgress) -> Iterator[Batch]:
        """The records from `split.offset` on, up to `split.end_offset`, in a stable order.

        A batch without rows means that there is nothing at the moment, but the split goes on. It
        does not block for longer than a barrier may wait.

        Raises:
            Rejected: the split cannot be read; names what is gone.
                Retryable: the outside world has not answered for too long.
        """
        ...

    def close(self) -> None:
        """Called once, when reading has ended."""
        ...


@runtime_checkable
class TellsProgress(Protocol):
    """A reader that reports the progress of completed checkpoints to other systems, for display.

    Nothing depends on it: a restore does not read it, and nothing waits for it.
    """

    def tell(self, splits: Sequence[SplitProgress]) -> None:
        """Takes positions of a completed checkpoint. Raises nothing, and waits for no answer."""
        ...

    def take_told_counts(self) -> tuple[int, int]:
        """How often it succeeded and failed since the last call."""
        ...


@runtime_checkable
class KnowsPending(Protocol):
    """A reader that knows how much is left to read. Source: Flink's metric `pendingRecords`."""

    def pending_records(self) -> int | None:
        """About how many records the splits hold that were not handed out, at least, as last
        reported by their systems. None: not known for all splits. Any thread may call it."""
        ...


@runtime_checkable
class TellsTrouble(Protocol):
    """A reader that waits for its system and says so, before it gives up."""

    def trouble(self) -> str:
        """What does not answer, in one sentence; empty: its system answers. Any thread may call
        it."""
        ...


@runtime_checkable
class ConfirmsSplits(Protocol):
    """A reader that can tell if a name still means the split whose records it has read. For a topic
    that was deleted and created again, it does not."""

    def confirmed(self, splits: Sequence[SplitProgress]) -> Mapping[str, str]:
        """The present versions of these splits, by name; a split is missing if its version cannot
        be read now. Called at each cut, so it waits only briefly.

        Raises Rejected if a split is another one than its version says.
        """
        ...


@runtime_checkable
class GrowingSource(Protocol):
    """A source whose splits are known by name, and which may get more of them later.

    Every subtask finds the splits by itself and takes those that it owns, so the subtasks need not
    agree on anything. Source: Flink's `KafkaSourceEnumerator`, `ContinuousFileSplitEnumerator`.
    """

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def timestamp_column(self) -> str | None:
        """As for `Source`."""
        ...

    @property
    def out_of_orderness_ms(self) -> int: ...

    @property
    def concurrent_splits(self) -> int:
        """How many splits one subtask reads side by side; the slowest one sets event time."""
        ...

    @property
    def discovery_interval_ms(self) -> int | None:
        """How often to look for new splits; None: only at the start."""
        ...

    def validate(self) -> None:
        """Raises Rejected before anything starts, as for `Source`."""
        ...

    def find(self, known: Collection[str], *, is_start: bool) -> list[SplitProgress]:
        """The splits that are not `known`, in the order to read them, with where to begin and end.

        `is_start`: nothing was ever read, so the author's choice of where to begin applies. A split
        that is found later is read from its beginning, and a bounded source finds none later. Only
        the first call is on the subtask's thread.

        Raises:
            Rejected: it cannot be read from where the author wants to begin.
            Retryable: the outside world does not answer.
        """
        ...

    def owner(self, name: str, parallelism: int) -> int:
        """The subtask that reads the split of that name; the same in every process, for ever."""
        ...

    def oldest(self, split: SplitProgress) -> int:
        """The oldest offset from which nothing is missing that `split` has not read yet.

        Raises:
            Rejected: the split itself is gone, or holds other records now.
            Retryable: the outside world does not answer.
        """
        ...

    def range_gone(self, split: SplitProgress, oldest: int) -> str:
        """One sentence for a person: which range before `oldest` is gone and was not read."""
        ...

    def open(self) -> SplitReader: ...


@runtime_checkable
class BeginsOnce(Protocol):
    """A growing source whose first look depends on the time, as the end of a log does.

    The driver looks once for a run, so that all slots and all attempts begin at the same place.
    """

    @property
    def begins_once(self) -> bool: ...

    def find(self, known: Collection[str], *, is_start: bool) -> list[SplitProgress]:
        """As for `GrowingSource`."""
        ...


@runtime_checkable
class ForgetsRecords(Protocol):
    """A growing source whose records are deleted at a certain age."""

    def kept_until_ms(self, splits: Sequence[SplitProgress]) -> int | None:
        """When the first unread record may be deleted; None: no unread record has such a date.

        Milliseconds since 1970. Raises Rejected and Retryable, as `GrowingSource.oldest` does.
        """
        ...


@dataclass(frozen=True, slots=True)
class PastGap:
    """`at`: the position of a split behind what is gone; so many records were lost, at most."""

    at: SplitProgress
    records: int


@runtime_checkable
class ReadsPastGaps(Protocol):
    """A growing source whose system deletes old records, and that can go on behind them."""

    @property
    def retention_setting(self) -> str:
        """What decides in that system how long records are kept, as a person would name it."""
        ...

    def past_gap(self, split: SplitProgress) -> PastGap | None:
        """None: nothing is gone, or not all of what is gone lies in one range at the front.

        Raises Rejected and Retryable, as `GrowingSource.oldest` does.
        """
        ...


AnySource: TypeAlias = Source | GrowingSource


class StartAt(StrEnum):
    OLDEST = "oldest"
    NEWEST = "newest"
