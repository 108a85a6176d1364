"""Readers that delay records: for mode at most once, or to read a quarantine first.

In mode at most once, a source hands out only records that no later attempt reads again.
`ReservingReader` reads ahead, and each checkpoint reserves all records read so far: a recovery
starts behind them. The reader hands out records once the checkpoint that reserves them is complete.
So every record that a lost attempt has emitted lies before the start of the next attempt. It owns
the records read ahead; a crash loses at most these and the records in flight.

`ReplayingReader` reads a source's quarantine and then its new records, as one reader. Only the
source advances event time, so records of the quarantine are late for windows that have closed.
`connectors.files.quarantine` decides which records are read again.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipelines.channels.credit import cost_of
from pipelines.domain.elements import Records
from pipelines.domain.errors import check
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Json
from pipelines.protocol.watermarks import EventTimeMark
from pipelines.runtime.subtask.chains.chain_node import RECORDS_READ
from pipelines.runtime.subtask.sources.source_reader import (
    NO_COUNTS,
    SourceReader,
    SplitInWork,
    sum_of,
)

BATCHES_PER_CALL = 4

RECORDS_REPLAYED = "records_replayed"
"""Counts records of the quarantine that operators get again; the source has read them before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    batch: pa.RecordBatch
    size_bytes: int
    number: int  # of the batch, in the order of reading
    positions: Json  # after that batch
    watermark_ms: int | None
    split: SplitInWork | None
    counts: Mapping[str, int]
    marks: list[EventTimeMark]  # of the batch, and those known before the next one


@dataclass(frozen=True, slots=True)
class _Read:
    """How far the source was read, in batches and in bytes."""

    count: int = 0
    size_bytes: int = 0


class ReservingReader(SourceReader):
    """Guarantee: `next` returns a batch only after a checkpoint with `reserved` positions behind it
    has completed.

    The caller must report completed checkpoints. If it does not report aborted ones, the reader
    waits for the next periodic checkpoint.
    """

    def __init__(self, reader: SourceReader, ahead_bytes_max: int) -> None:
        """`ahead_bytes_max`: how many bytes to read ahead, plus one batch, and so how many each
        checkpoint lets out."""
        self._reader = reader
        self._ahead_bytes_max = ahead_bytes_max
        self._ahead: deque[_Ahead] = deque()
        self._ahead_bytes = 0
        self._read = _Read()
        self._granted = _Read()  # how much of it may be handed out
        self._reservations: dict[CheckpointId, _Read] = {}  # of checkpoints under way
        self._has_wished = False  # since the last checkpoint that reserved the records read
        self._positions = reader.positions()
        self._watermark_ms: int | None = None
        self._marks: list[EventTimeMark] = []
        self._counts = NO_COUNTS
        self._split: SplitInWork | None = None
        self._has_read_ahead = False

    @property
    def split(self) -> SplitInWork | None:
        return self._split

    @property
    def has_read_ahead(self) -> bool:
        return self._has_read_ahead

    @property
    def is_exhausted(self) -> bool:
        return not self._ahead and self._reader.is_exhausted

    @property
    def requested(self) -> SplitInWork | None:
        return self._reader.requested

    @property
    def _has_granted(self) -> bool:
        return bool(self._ahead) and self._ahead[0].number <= self._granted.count

    @property
    def _unreserved_bytes(self) -> int:
        """The bytes read that no completed checkpoint, and none under way, has reserved."""
        reserved = (each.size_bytes for each in self._reservations.values())
        return self._read.size_bytes - max(self._granted.size_bytes, *reserved, 0)

    def positions(self) -> Json:
        """Returns the positions behind the last record handed out."""
        return self._positions

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
        """Returns the positions behind the last record read ahead: an attempt that restores this
        point begins there."""
        is_new = checkpoint_id not in self._reservations
        check(is_new, "a checkpoint reserves once", checkpoint_id=checkpoint_id)
        self._reservations[checkpoint_id] = self._read
        self._has_wished = False
        return self._reader.positions()

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        granted = self._reservations.get(checkpoint_id, self._granted)
        if granted.count > self._granted.count:
            self._granted = granted
        self._reservations = {n: r for n, r in self._reservations.items() if n > checkpoint_id}

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        """Drops the reservation. The checkpoint may also be the one that this reader wished for,
        aborted before it came here: so the reader may wish again."""
        self._reservations.pop(checkpoint_id, None)
        self._has_wished = False

    def take_wish(self) -> bool:
        """Wishes for a checkpoint once half of the read-ahead limit is not reserved. The other half
        is handed out while the checkpoint is under way, so that the source need not stop."""
        unreserved = self._unreserved_bytes
        is_half = 2 * unreserved >= self._ahead_bytes_max
        if self._has_wished or not unreserved or not (is_half or self._is_held_up(unreserved)):
            return False
        self._has_wished = True
        return True

    def _is_held_up(self, unreserved_bytes: int) -> bool:
        """Returns True if nothing may be handed out, and either the source is exhausted or as much
        was read as all checkpoints of this attempt have freed so far. So the first records come out
        after one short checkpoint. Later requests become rare, because each frees twice as much."""
        if self._has_granted:
            return False
        has_doubled = not self._reservations and unreserved_bytes >= self._granted.size_bytes
        return has_doubled or self._reader.is_exhausted

    def next(self) -> pa.RecordBatch | None:
        """Returns the next reserved batch, or None."""
        self._read_ahead()
        if not self._has_granted:
            return None
        first = self._ahead.popleft()
        self._ahead_bytes -= first.size_bytes
        self._positions, self._watermark_ms = first.positions, first.watermark_ms
        self._marks += first.marks
        self._counts = sum_of(self._counts, first.counts)
        self._split = first.split
        return first.batch

    def confirm(self) -> None:
        self._reader.confirm()

    def close(self) -> None:
        self._reader.close()

    def watermark_ms(self) -> int | None:
        """Returns the watermark of the records that were handed out."""
        return self._reader.watermark_ms() if self.is_exhausted else self._watermark_ms

    def take_marks(self) -> list[EventTimeMark]:
        """Returns the marks of the records handed out since the last call."""
        marks, self._marks = self._marks, []
        return marks

    def take_counts(self) -> Mapping[str, int]:
        """Returns the counts for the records handed out since the last call."""
        counts, self._counts = self._counts, NO_COUNTS
        return counts

    def _read_ahead(self) -> None:
        """Reads a few batches per call, so that the subtask can answer barriers in between."""
        read_before = self._read.count
        self._read_some()
        self._has_read_ahead = self._read.count > read_before

    def _read_some(self) -> None:
        for _ in range(BATCHES_PER_CALL):
            if self._ahead_bytes >= self._ahead_bytes_max:
                return
            batch = self._reader.next()
            if batch is None:
                self._keep_marks()
                return
            self._keep(batch)

    def _keep_marks(self) -> None:
        """Keeps the marks in their place, behind the batches that were read before them."""
        marks = self._ahead[-1].marks if self._ahead else self._marks
        marks += self._reader.take_marks()

    def _keep(self, batch: pa.RecordBatch) -> None:
        size_bytes = cost_of(Records(batch))
        self._read = _Read(self._read.count + 1, self._read.size_bytes + size_bytes)
        self._ahead_bytes += size_bytes
        self._ahead.append(
            _Ahead(
                batch=batch,
                size_bytes=size_bytes,
                number=self._read.count,
                positions=self._reader.positions(),
                watermark_ms=self._reader.watermark_ms(),
                split=self._reader.split,
                counts=self._reader.take_counts(),
                marks=self._reader.take_marks(),
            )
        )


class ReplayingReader(SourceReader):
    """Guarantee: each record comes once, from the source or its quarantine, as the positions of
    both say. All records of the quarantine come before those of the source.

    Needs a caller that stores both positions with the same cut.
    """

    def __init__(self, source: SourceReader, quarantine: SourceReader) -> None:
        self._source = source
        self._quarantine = quarantine
        self._current = source

    @property
    def split(self) -> SplitInWork | None:
        return self._current.split

    @property
    def requested(self) -> SplitInWork | None:
        return self._current.requested

    @property
    def is_exhausted(self) -> bool:
        return self._quarantine.is_exhausted and self._source.is_exhausted

    def next(self) -> pa.RecordBatch | None:
        """Returns None also if the quarantine has nothing at the moment, for example because a
        record goes into quarantine again. It does not read the source then: one more batch of it
        may end event time."""
        self._current = self._quarantine
        batch = self._quarantine.next()
        if batch is None and self._quarantine.is_exhausted:
            self._current = self._source
            batch = self._source.next()
        return batch

    def positions(self) -> Json:
        return self._source.positions()

    def watermark_ms(self) -> int | None:
        return self._source.watermark_ms()

    def take_marks(self) -> list[EventTimeMark]:
        return self._source.take_marks()

    def take_counts(self) -> Mapping[str, int]:
        """Counts records of the quarantine under a name of their own."""
        replayed = self._quarantine.take_counts().get(RECORDS_READ)
        again = {RECORDS_REPLAYED: replayed} if replayed else NO_COUNTS
        return sum_of(self._source.take_counts(), again)

    def confirm(self) -> None:
        self._source.confirm()

    def close(self) -> None:
        """Closes only the source's reader; the owner of the quarantine's reader closes that one."""
        self._source.close()
