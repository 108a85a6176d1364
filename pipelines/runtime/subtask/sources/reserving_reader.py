"""Readers that hand out records later: at most once, or a quarantine before the new records.

At most once, a source hands out only what no later attempt will read again. `ReservingReader` reads
ahead, and reserves with each checkpoint all that it has read: a recovery starts behind it. It hands
records out once the checkpoint that reserves them is complete, so whatever a lost attempt has
emitted lies before the place where the next one begins. It owns the records read ahead; a crash
loses at most these and what was on its way.

`ReplayingReader` reads a source's quarantine and then its new records, as one reader. Event time is
the source's alone, so records of the quarantine are late for windows that have closed by then.
`connectors.files.quarantine` decides what is read again.
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
"""Counts records of the quarantine that operators get once more; the source read them before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    batch: pa.RecordBatch
    size_bytes: int
    number: int  # of the batch, in the order of reading
    positions: Json  # behind that batch
    watermark_ms: int | None
    split: SplitInWork | None
    counts: Mapping[str, int]
    marks: list[EventTimeMark]  # of the batch, and those known before the next one


@dataclass(frozen=True, slots=True)
class _Read:
    """How far the source was read, in batches and in what they hold."""

    count: int = 0
    size_bytes: int = 0


class ReservingReader(SourceReader):
    """Guarantee: `next` gives a batch only after a completed checkpoint holds, as `reserved`,
    positions behind it. The caller must report completed checkpoints; if it does not report aborted
    ones, the reader waits for the next periodic one."""

    def __init__(self, reader: SourceReader, ahead_bytes_max: int) -> None:
        """`ahead_bytes_max`: read ahead, plus one batch; so much is handed out per checkpoint."""
        self._reader = reader
        self._ahead_bytes_max = ahead_bytes_max
        self._ahead: deque[_Ahead] = deque()
        self._ahead_bytes = 0
        self._read = _Read()
        self._granted = _Read()  # what may be handed out of it
        self._reservations: dict[CheckpointId, _Read] = {}  # of checkpoints under way
        self._has_wished = False  # since the last checkpoint that reserves what was read
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
    def asked(self) -> SplitInWork | None:
        return self._reader.asked

    @property
    def _has_granted(self) -> bool:
        return bool(self._ahead) and self._ahead[0].number <= self._granted.count

    @property
    def _unreserved_bytes(self) -> int:
        """Bytes that were read, and are in no checkpoint that is complete or may still complete."""
        reserved = (each.size_bytes for each in self._reservations.values())
        return self._read.size_bytes - max(self._granted.size_bytes, *reserved, 0)

    def positions(self) -> Json:
        """Behind the last record handed out."""
        return self._positions

    def reserved(self, checkpoint_id: CheckpointId) -> Json:
        """Behind the last record read ahead: where an attempt begins that restores this point."""
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
        """Its records have to be reserved again. It may also be the checkpoint that this reader
        wished for, ended before it came here."""
        self._reservations.pop(checkpoint_id, None)
        self._has_wished = False

    def take_wish(self) -> bool:
        """A checkpoint should come if half of what may be read ahead is not reserved: the other
        half is handed out while it is under way, so that the source need not stand still."""
        unreserved = self._unreserved_bytes
        is_half = 2 * unreserved >= self._ahead_bytes_max
        if self._has_wished or not unreserved or not (is_half or self._is_held_up(unreserved)):
            return False
        self._has_wished = True
        return True

    def _is_held_up(self, unreserved_bytes: int) -> bool:
        """True if nothing may be handed out, and either nothing more can be read, or as much was
        read as all checkpoints of this attempt have freed. So the first records come out after one
        short checkpoint, and checkpoints requested here become rare: each frees twice as much."""
        if self._has_granted:
            return False
        has_doubled = not self._reservations and unreserved_bytes >= self._granted.size_bytes
        return has_doubled or self._reader.is_exhausted

    def next(self) -> pa.RecordBatch | None:
        """The next batch that is reserved, or None."""
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
        """The watermark of the records that were handed out."""
        return self._reader.watermark_ms() if self.is_exhausted else self._watermark_ms

    def take_marks(self) -> list[EventTimeMark]:
        """The marks of the records handed out since the last call."""
        marks, self._marks = self._marks, []
        return marks

    def take_counts(self) -> Mapping[str, int]:
        """What has happened to the records handed out since the last call."""
        counts, self._counts = self._counts, NO_COUNTS
        return counts

    def _read_ahead(self) -> None:
        """Reads a few batches a call, so that barriers are answered in between."""
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
        """Marks keep their place behind the batches that were read before them."""
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
    """Guarantee: each record comes once, from the source or from its quarantine, as the positions
    of both say, and none of the source comes before the quarantine is used up. Needs a caller that
    stores both with the same cut.
    """

    def __init__(self, source: SourceReader, quarantine: SourceReader) -> None:
        self._source = source
        self._quarantine = quarantine
        self._current = source

    @property
    def split(self) -> SplitInWork | None:
        return self._current.split

    @property
    def asked(self) -> SplitInWork | None:
        return self._current.asked

    @property
    def is_exhausted(self) -> bool:
        return self._quarantine.is_exhausted and self._source.is_exhausted

    def next(self) -> pa.RecordBatch | None:
        """None also if the quarantine has nothing at the moment, for example where a record is set
        aside again: one more batch of the source may end event time."""
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
        """Records of the quarantine have a name of their own."""
        replayed = self._quarantine.take_counts().get(RECORDS_READ)
        again = {RECORDS_REPLAYED: replayed} if replayed else NO_COUNTS
        return sum_of(self._source.take_counts(), again)

    def confirm(self) -> None:
        self._source.confirm()

    def close(self) -> None:
        """The owner of the quarantine's reader closes that one."""
        self._source.close()
