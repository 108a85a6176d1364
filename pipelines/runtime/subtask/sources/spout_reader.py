"""A source in mode ACKED: emits each record until all of its descendants are processed.

Keeps the batches that the spout's machine (`protocol.acking`) has open, receives the ackers'
verdicts, and reports when a timeout has passed. A cut stores the position before the oldest batch
with an unprocessed record, so a recovery begins there. Event time passes a batch only once that
batch and all before it are processed completely, so a record that is emitted again is not late.

Source: Storm, `SpoutExecutor`; `KafkaSpout` (its offsets, and its pause before failed records).
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from pipelines.channels.channel import InputGate
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Records, Watermark, WatermarkStatus
from pipelines.domain.settings import AckingOptions
from pipelines.domain.snapshots import Json
from pipelines.protocol.acking import (
    BUCKET_COUNT,
    BatchNumber,
    Emission,
    Ids,
    Numbers,
    Spout,
    numbers_of,
)
from pipelines.protocol.watermarks import EventTimeMark
from pipelines.runtime.subtask.acking.acker_task import read_verdict
from pipelines.runtime.subtask.chains.chain_node import RECORDS_READ
from pipelines.runtime.subtask.sources.source_reader import SourceReader, SplitInWork

FAILED_PAUSE_MS = 100.0
"""The pause after a failure: a record that fails again and again must leave others time."""

_ACTIVE = WatermarkStatus(is_idle=False)
_NOTHING_READ = BatchNumber(-1)
_NAMES = ("emitted", "replayed", "acked", "failed", "timed_out")
SPOUT_ACKED = "spout_acked"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A batch that is not completely processed."""

    batch: pa.RecordBatch
    split: SplitInWork | None
    positions: Json  # before the batch
    records_before: int  # how many records this reader had read before the batch

    def rows(self, rows: Numbers) -> pa.RecordBatch:
        first, count = int(rows[0]), len(rows)
        if int(rows[-1]) - first + 1 == count:  # rows ascend, so these have no gaps
            return self.batch.slice(first, count)
        return self.batch.take(pa.array(rows))

    def split_of(self, rows: Numbers) -> SplitInWork | None:
        split = self.split
        if split is None or len(rows) == self.batch.num_rows:
            return split
        offsets = split.offsets
        if offsets is None:
            offsets = np.arange(split.first_offset, split.next_offset)
        chosen = offsets[rows]
        return SplitInWork(split.name, int(chosen[0]), int(chosen[-1]) + 1, chosen)


class SpoutReader(SourceReader):
    """Guarantee: `positions` is never behind a record that is not processed.

    If `verdicts` is None, no acker follows the records: each counts as processed once emitted.
    """

    def __init__(
        self,
        reader: SourceReader,
        spout: Spout,
        options: AckingOptions,
        verdicts: InputGate | None,
        clock: Clock,
    ) -> None:
        self._reader = reader
        self._spout = spout
        self._verdicts = verdicts
        self._clock = clock
        self._rotation_ms = options.timeout_ms / (BUCKET_COUNT - 1)
        self._rotates_at_ms = clock.monotonic_ms() + self._rotation_ms
        self._failed: deque[tuple[float, Numbers]] = deque()  # with the time of the next try
        self._kept: dict[BatchNumber, _Kept] = {}
        self._newest = _NOTHING_READ
        self._read_records = 0
        self._held: deque[tuple[BatchNumber, list[EventTimeMark]]] = deque()  # behind that batch
        self._marks: list[EventTimeMark] = []
        self._watermark_ms: int | None = None
        self._emission: Emission | None = None
        self._counts = asdict(spout.statistics())
        self._split: SplitInWork | None = None

    @property
    def split(self) -> SplitInWork | None:
        return self._split

    @property
    def is_exhausted(self) -> bool:
        """True if all records were read and processed."""
        return self._reader.is_exhausted and not (self._kept or self._held or self._marks)

    @property
    def requested(self) -> SplitInWork | None:
        return self._reader.requested

    @property
    def trees(self) -> Ids | None:
        emission = self._emission
        return None if emission is None or self._verdicts is None else emission.trees

    @property
    def due_ms(self) -> float:
        retried_at_ms = self._failed[0][0] if self._failed else self._rotates_at_ms
        return min(self._rotates_at_ms, retried_at_ms)

    def positions(self) -> Json:
        oldest = self._spout.oldest_open
        return self._reader.positions() if oldest is None else self._kept[oldest].positions

    def counts_beyond_positions(self) -> Mapping[str, int]:
        """See `Feed.counts_beyond_positions`; counts each emitted record once. Records may be acked
        before earlier ones are, and acks since the last `take_counts` are not counted yet."""
        oldest, counts = self._spout.oldest_open, self._spout.statistics()
        emitted = counts.emitted_count - counts.replayed_count
        before = emitted if oldest is None else self._kept[oldest].records_before
        return {
            RECORDS_READ: max(0, emitted - before),
            SPOUT_ACKED: self._counts["acked_count"] - before,
        }

    def next(self) -> pa.RecordBatch | None:
        """Returns the next batch to emit; None if none is due or enough records are in flight."""
        if self._spout.wants_records:
            self._read()
        self._emission = emission = self._spout.take()
        if emission is None:
            self._release_marks()
            return None
        kept = self._kept[emission.batch]
        self._split = kept.split_of(emission.rows)
        if self._verdicts is None:
            self._on_acked(numbers_of(emission.trees))
        return kept.rows(emission.rows)

    def attend(self) -> bool:
        """Checks the clock and takes one verdict. Returns False if there was none."""
        self._look_at_clock()
        polled = None if self._verdicts is None else self._verdicts.poll()
        if polled is None:
            return False
        _, element = polled
        if isinstance(element, Records):
            acked, failed = read_verdict(element)
            self._on_acked(acked)
            if len(failed):
                self._failed.append((self._clock.monotonic_ms() + FAILED_PAUSE_MS, failed))
        return True

    def confirm(self) -> None:
        self._reader.confirm()

    def close(self) -> None:
        self._reader.close()

    def watermark_ms(self) -> int | None:
        """Returns the watermark of the processed records."""
        return self._watermark_ms

    def take_marks(self) -> list[EventTimeMark]:
        """Returns the event time that may be passed on since the last call."""
        marks, self._marks = self._marks, []
        times = [mark.timestamp_ms for mark in marks if isinstance(mark, Watermark)]
        self._watermark_ms = times[-1] if times else self._watermark_ms
        return marks

    def take_counts(self) -> Mapping[str, int]:
        """Counts a record as read when it is emitted for the first time."""
        before, self._counts = self._counts, asdict(self._spout.statistics())
        changed = {name: self._counts[f"{name}_count"] - before[f"{name}_count"] for name in _NAMES}
        counts = {f"spout_{name}": changed[name] for name in _NAMES[1:]}
        of_reader = dict(self._reader.take_counts())
        of_reader[RECORDS_READ] = changed["emitted"] - changed["replayed"]
        return {name: count for name, count in (of_reader | counts).items() if count}

    def _read(self) -> None:
        before = self._reader.positions()
        batch = self._reader.next()
        if batch is not None:
            self._newest = self._spout.on_read(batch.num_rows)
            kept = _Kept(batch, self._reader.split, before, self._read_records)
            self._kept[self._newest] = kept
            self._read_records += batch.num_rows
        marks = self._reader.take_marks()
        if marks[:1] == [_ACTIVE]:  # ahead of the records that make the source active
            self._marks.append(_ACTIVE)
            marks = marks[1:]
        if marks:
            self._held.append((self._newest, marks))

    def _on_acked(self, numbers: Numbers) -> None:
        for batch in self._spout.on_acked(numbers):
            del self._kept[batch]
        self._release_marks()

    def _release_marks(self) -> None:
        oldest = self._spout.oldest_open
        while self._held and (oldest is None or self._held[0][0] < oldest):
            self._marks += self._held.popleft()[1]

    def _look_at_clock(self) -> None:
        now_ms = self._clock.monotonic_ms()
        while self._failed and self._failed[0][0] <= now_ms:
            self._spout.on_failed(self._failed.popleft()[1])
        if now_ms >= self._rotates_at_ms:
            self._rotates_at_ms = now_ms + self._rotation_ms
            self._spout.rotate()
