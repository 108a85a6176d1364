"""The contract of a source: splits, each read from an offset.

The engine owns positions: it deals splits to subtasks, stores (split, offset next to read) in every
checkpoint, and rewinds by opening a split at that offset. A reader keeps nothing that a checkpoint
does not know. The splits are either a sequence that never changes (`Source`), or known by name and
found while the run goes on (`GrowingSource`). Source: Flink's FLIP-27 (`SplitReader`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.errors import Rejected

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LoggedRecords:
    """Records of a log with gaps: `offsets` ascends and holds the one of each record.

    A position is one behind the offset of the last record handed out; or `end`, where the source
    knows that nothing lies between. A batch without rows may move a position so. `version`: that
    of the split once all of these are handed out; None: as it was.
    """

    records: pa.RecordBatch
    offsets: Offsets
    end: int | None = None
    version: str | None = None


class MalformedRecord(Rejected):
    """A record that a source cannot read. All before it was given; whoever wants to do without it
    reads on from the offset behind it, in a new iterator.

    `row` is its place in what was to be decoded, `text` what is there.
    """

    def __init__(self, sentence: str, *, row: int, offset: int, text: bytes) -> None:
        super().__init__(sentence)
        self.row = row
        self.offset = offset
        self.text = text.decode(errors="backslashreplace")


class UnreadableText(Exception):
    """What a source could not read, and cannot now; the text says what is wrong, in a clause."""


Batch: TypeAlias = pa.RecordBatch | LoggedRecords
"""Of a bare batch the offsets follow each other without gaps."""


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

    def read(self, index: int, offset: int) -> Iterator[Batch]:
        """The records of a split from `offset` on, in a stable order.

        A batch without rows says that there is nothing at the moment, but the split goes on.

        Raises:
            Rejected: the split cannot be read: malformed, a column missing, or gone (then the
                message says which range is gone). Names the file.
            MalformedRecord: one record cannot be read, and the source can tell which.
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


@runtime_checkable
class ReadsText(Protocol):
    """A source that makes a row of the text of a `MalformedRecord`, once its schema or its format
    is another. Of one that is none, that text has to be a JSON object of its columns."""

    def row_of_text(self, text: str) -> pa.RecordBatch:
        """One row. Raises UnreadableText."""
        ...


@runtime_checkable
class ReadOnce(Protocol):
    """A source that may be unable to give its records again, as a socket is.

    What a failure takes of it is lost: a pipeline that reads it is at most once.
    """

    @property
    def reads_once(self) -> bool: ...


class SplitReader(Protocol):
    """Reads any number of splits for one subtask, by its thread only."""

    def read(self, split: SplitProgress) -> Iterator[Batch]:
        """The records from `split.offset` on, up to `split.end_offset`, in a stable order.

        A batch without rows says that there is nothing at the moment, but the split goes on. It
        does not block for longer than a barrier may wait.

        Raises:
            Rejected: the split cannot be read; what is gone is named.
            Retryable: the world has not answered for too long.
        """
        ...

    def close(self) -> None:
        """Called once, when nothing is read any more."""
        ...


@runtime_checkable
class TellsProgress(Protocol):
    """A reader that tells others how far completed checkpoints have come, for them to look at.

    Nothing depends on it: it is neither read when a run is restored nor waited for.
    """

    def tell(self, splits: Sequence[SplitProgress]) -> None:
        """Positions of a completed checkpoint. Raises nothing, and does not wait for an answer."""
        ...

    def take_told_counts(self) -> tuple[int, int]:
        """How often it succeeded and failed since the last time."""
        ...


@runtime_checkable
class KnowsPending(Protocol):
    """A reader that knows how much there is to read. Source: Flink's metric `pendingRecords`."""

    def pending_records(self) -> int | None:
        """Of the splits that are read, as last heard from where they are: at least about so many
        are there and were not given yet. None: not known of all of them. From any thread."""
        ...


@runtime_checkable
class ConfirmsSplits(Protocol):
    """A reader that can tell whether a name still stands for the split whose records it has read,
    as a topic that was deleted and created again does not."""

    def confirmed(self, splits: Sequence[SplitProgress]) -> Mapping[str, str]:
        """The versions of these splits, by name, as they are now; a split whose version cannot be
        asked now is missing. Called at each cut, so it waits briefly.

        Raises Rejected: a split is another one than its version says.
        """
        ...


@runtime_checkable
class GrowingSource(Protocol):
    """A source whose splits are known by name, and of which there may be more later.

    Every subtask finds the splits by itself and takes those that it owns, so nobody has to agree
    on anything. Source: Flink's `KafkaSourceEnumerator`, `ContinuousFileSplitEnumerator`.
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
        """How many splits one subtask reads side by side; event time is the slowest one's."""
        ...

    @property
    def discovery_interval_ms(self) -> int | None:
        """How often new splits are looked for; None: there are those of the start only."""
        ...

    def validate(self) -> None:
        """Raises Rejected before anything starts, as for `Source`."""
        ...

    def find(self, known: Collection[str], *, is_start: bool) -> list[SplitProgress]:
        """The splits that are not `known`, in the order to read them, where to begin and to end.

        `is_start`: nothing was ever read, so the author's choice of where to begin holds; what is
        found later is read from its beginning, and a bounded source finds nothing any more. On the
        subtask's thread the first time only.

        Raises:
            Retryable: the world does not answer.
        """
        ...

    def owner(self, name: str, parallelism: int) -> int:
        """Which subtask reads the split of that name; the same in every process, for ever."""
        ...

    def oldest(self, split: SplitProgress) -> int:
        """The oldest offset from which on nothing is missing that `split` has not read yet.

        Raises:
            Rejected: the split itself is gone, or holds other records now.
            Retryable: the world does not answer.
        """
        ...

    def range_gone(self, split: SplitProgress, oldest: int) -> str:
        """One sentence for a person: which range before `oldest` was not read and is gone."""
        ...

    def open(self) -> SplitReader: ...


@runtime_checkable
class BeginsOnce(Protocol):
    """A growing source whose first look depends on the moment, as the end of a log does.

    The driver looks, once for a run, so that all slots and all attempts begin at the same place.
    """

    @property
    def begins_once(self) -> bool: ...

    def find(self, known: Collection[str], *, is_start: bool) -> list[SplitProgress]:
        """As for `GrowingSource`."""
        ...


@runtime_checkable
class ForgetsRecords(Protocol):
    """A growing source whose records are deleted when they have become old enough."""

    def kept_until_ms(self, splits: Sequence[SplitProgress]) -> int | None:
        """When the first of what was not read yet may be deleted; None: nothing there has a date.

        Milliseconds since 1970. Raises Rejected and Retryable, as `GrowingSource.oldest` does.
        """
        ...


AnySource: TypeAlias = Source | GrowingSource
