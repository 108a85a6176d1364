"""The contract of a source: splits, each read from an offset, and where a run begins in a log.

The engine owns positions: it deals splits to subtasks, stores (split, offset to read next) in every
checkpoint, and rewinds by opening a split at that offset. A reader keeps nothing that is not in a
checkpoint. The splits are either a sequence that never changes (`Source`), or known by name and
found during the run (`GrowingSource`). Source: Flink's FLIP-27 (`SplitReader`).
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

    The position is one after the offset of the last record handed out, or `end` if the source knows
    that no record lies between. A batch without rows may also advance a position to `end`.
    `version`: the split's version once all these records are handed out; None: unchanged.
    """

    records: pa.RecordBatch
    offsets: Offsets
    end: int | None = None
    version: str | None = None


class MalformedRecord(Rejected):
    """A record that a source cannot read. All records before it were handed out.

    To skip it, continue at the next offset in a new iterator. `row` is its place among the rows to
    decode, `text` its content.
    """

    kind: ClassVar[FailureKind] = FailureKind.MALFORMED_RECORD

    def __init__(self, sentence: str, *, row: int, offset: int, text: bytes) -> None:
        super().__init__(sentence)
        self.row = row
        self.offset = offset
        self.text = text.decode(errors="backslashreplace")


class UnreadableText(Exception):
    """Text that a source still cannot read; the message says why, in a clause."""


Batch: TypeAlias = pa.RecordBatch | LoggedRecords
"""The offsets of a plain batch follow each other without gaps."""


class Source(Protocol):
    """Immutable description; safe to build in every process."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def timestamp_column(self) -> str | None:
        """The column of event time, `timestamp[ms, UTC]`; None: the source has no event time."""
        ...

    @property
    def out_of_orderness_ms(self) -> int:
        """How far a record may lie behind the newest one read before it, within a split."""
        ...

    def validate(self) -> None:
        """Raises Rejected if the input is malformed or gone, or a column does not fit.

        Called when a pipeline is submitted, before anything starts. Not called when it recovers:
        input that has been read may be gone by then.
        """
        ...

    def split_id(self, index: int) -> str | None:
        """Name of the `index`-th split (0, 1, ...); None past the end. There may be no end.

        Later splits hold later event time, unless several are read side by side. The sequence
        never changes between restarts.
        """
        ...

    def read(self, index: int, offset: int) -> Iterator[Batch]:
        """The records of a split from `offset` on, in a stable order.

        A batch without rows means that there is no record now, but the split has not ended.

        Raises Rejected if the split cannot be read: it is malformed or gone, or a column is
        missing. The message names the file, and the missing range. Raises MalformedRecord if one
        record cannot be read, and the source knows which.
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

    The version is stored with the position and compared when a run is restored there. So a replaced
    split is refused by name, and not read from the middle of other data.
    """

    def split_version(self, index: int) -> str:
        """Short text, equal as long as the records are. Raises Rejected if the split is gone."""
        ...


@runtime_checkable
class ReadsText(Protocol):
    """A source that can convert the text of a `MalformedRecord` to a row.

    It can do so once its schema or its format has changed. For other sources, that text has to be a
    JSON object of the columns.
    """

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

        A batch without rows means that there is no record now, but the split has not ended. The
        iterator does not block for longer than a barrier may wait.

        Raises:
            Rejected: the split cannot be read; names what is gone.
            Retryable: the outside world has not answered for too long.
        """
        ...

    def close(self) -> None:
        """Called once, when reading has ended."""
        ...


@runtime_checkable
class ReportsProgress(Protocol):
    """A reader that reports the progress of completed checkpoints to other systems, for display.

    Nothing depends on it: a restore does not read it, and nothing waits for it.
    """

    def tell(self, splits: Sequence[SplitProgress]) -> None:
        """Takes positions of a completed checkpoint. Raises nothing, and waits for no answer."""
        ...

    def take_report_counts(self) -> tuple[int, int]:
        """Returns how many reports succeeded and how many failed since the last call."""
        ...


@runtime_checkable
class KnowsPending(Protocol):
    """A reader that knows how much is left to read. Source: Flink's metric `pendingRecords`."""

    def pending_records(self) -> int | None:
        """Estimates how many records were not handed out yet; there may be more.

        Uses the last reports of the systems that hold the splits. None: not known for all splits.
        Any thread may call it.
        """
        ...


@runtime_checkable
class ReportsProblem(Protocol):
    """A reader that waits for its system and says so, before it gives up."""

    def source_problem(self) -> str:
        """Says in one sentence what does not answer; empty if its system answers.

        Any thread may call it.
        """
        ...


@runtime_checkable
class ConfirmsSplits(Protocol):
    """A reader that can tell if a name still means the split whose records it has read.

    The name of a topic that was deleted and created again does not.
    """

    def confirmed(self, splits: Sequence[SplitProgress]) -> Mapping[str, str]:
        """Returns the present versions of these splits by name, without those it cannot read now.

        Called at each cut, so it waits only briefly. Raises Rejected if a split is not the one that
        its version names.
        """
        ...


@runtime_checkable
class GrowingSource(Protocol):
    """A source whose splits are known by name, and that may get more of them later.

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
        """Finds the splits that are not `known`, in reading order, with their beginnings and ends.

        `is_start`: nothing was ever read, so the author's choice of where to begin applies. A split
        that is found later is read from its beginning, and a bounded source finds none later. Only
        the first call is on the subtask's thread.

        Raises:
            Rejected: a split cannot be read from where the author wants to begin.
            Retryable: the outside world does not answer.
        """
        ...

    def owner(self, name: str, parallelism: int) -> int:
        """The subtask that reads the split of that name; the same in every process, for ever."""
        ...

    def oldest(self, split: SplitProgress) -> int:
        """The oldest offset from which no record that `split` has not read yet is missing.

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
    """A growing source whose first look depends on the time, because the end of a log moves.

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
        """When the first unread record may be deleted; None: no unread record has such a time.

        Milliseconds since 1970. Raises Rejected and Retryable, as `GrowingSource.oldest` does.
        """
        ...


@dataclass(frozen=True, slots=True)
class PastGap:
    """`at`: the split's position behind the gap. `records`: how many were lost, at most."""

    at: SplitProgress
    records: int


@runtime_checkable
class ReadsPastGaps(Protocol):
    """A growing source whose system deletes old records, and that can continue behind them."""

    @property
    def retention_setting(self) -> str:
        """The setting of that system that limits how long records are kept, in words."""
        ...

    def past_gap(self, split: SplitProgress) -> PastGap | None:
        """Returns the gap, or None if no record is gone or the gap is not one range at the front.

        Raises Rejected and Retryable, as `GrowingSource.oldest` does.
        """
        ...


AnySource: TypeAlias = Source | GrowingSource


class StartAt(StrEnum):
    OLDEST = "oldest"
    NEWEST = "newest"
