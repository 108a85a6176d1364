"""One open split of a source: its batches, its records that are not due yet, its event time.

A paced replay advances at a fixed speed from where the attempt starts. Decides nothing about other
splits. Only the subtask's thread uses it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.dead_letters import COLUMN
from pipelines.connectors.source import AnySource, Batch, GrowingSource, LoggedRecords, Offsets
from pipelines.connectors.watermark_strategy import (
    BoundedOutOfOrderness,
    NoEventTime,
    WatermarkGenerator,
    WatermarkStrategy,
)
from pipelines.domain.clock import Clock
from pipelines.domain.errors import check
from pipelines.domain.event_time import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from pipelines.domain.snapshots import Json
from pipelines.operators.columns import longs
from pipelines.runtime.subtask.sources.found_splits import deal

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Taken:
    """Records of one split. `offsets` is None if they follow each other without gaps."""

    records: pa.RecordBatch
    offsets: Offsets | None = None
    end: int | None = None  # nothing lies between the last record and this offset
    version: str | None = None  # of the split, after all of these records

    def divided(self, row: int) -> tuple["Taken", "Taken"]:
        """Returns the records before the row, and those from it on."""
        head, tail = (None, None) if self.offsets is None else np.split(self.offsets, [row])
        return (
            Taken(self.records.slice(0, row), head),
            Taken(self.records.slice(row), tail, self.end, self.version),
        )

    def end_from(self, next_offset: int) -> int:
        """Returns the offset behind the last record. Raises InvariantViolated if offsets do not
        ascend from `next_offset`."""
        rows: int = self.records.num_rows
        if self.offsets is None:
            return next_offset + rows
        is_ascending = bool((np.diff(self.offsets) > 0).all())
        begins_there = not len(self.offsets) or int(self.offsets[0]) >= next_offset
        check(is_ascending and begins_there, "offsets ascend", next_offset=next_offset)
        behind = int(self.offsets[-1]) + 1 if len(self.offsets) else next_offset
        return max(behind, self.end or 0)


def taken_of(batch: Batch) -> Taken:
    if not isinstance(batch, LoggedRecords):
        return Taken(batch)
    rows = batch.records.num_rows
    check(rows == len(batch.offsets), "every record has an offset", rows=rows)
    return Taken(batch.records, batch.offsets, batch.end, batch.version)


@dataclass(slots=True, kw_only=True)
class OpenSplit:
    """`silent_since_ms`: when the reader first found the split empty after its last records.

    A split is silent only if the reader asks it: while a subtask waits for others to take its
    output, its splits are not silent.
    """

    index: int
    name: str
    next_offset: int
    batches: Iterator[Batch]
    generator: WatermarkGenerator
    strategy: WatermarkStrategy
    time_column: str | None
    held: Taken | None = None  # read, but not yet due
    silent_since_ms: float | None = None

    def take(self) -> Taken | None:
        """Returns the next records, perhaps without rows, or None if the split has ended."""
        if self.held is not None:
            taken, self.held = self.held, None
            return taken
        batch = next(self.batches, None)
        if batch is None:
            return None
        taken = taken_of(batch)
        self._check_has_event_time(taken)
        return taken

    def _check_has_event_time(self, taken: Taken) -> None:
        """Raises NoEventTime for a record that has no time and is no dead letter; names it."""
        column = self.time_column
        if column is None or taken.records.column(column).null_count == 0:
            return
        untimed = taken.records.column(column).is_null()
        if COLUMN in taken.records.schema.names:
            untimed = pc.and_(untimed, taken.records.column(COLUMN).is_null())
        row = untimed.index(True).as_py()
        if row < 0:
            return
        offset = self.next_offset + row if taken.offsets is None else int(taken.offsets[row])
        raise NoEventTime(
            f"The record at offset {offset} of {self.name} has no {column}: no event time. Leave"
            " such records out of the input, or give the source no timestamp_column, filter, and"
            " use assign_timestamps.",
            row,
        )

    def due_part(self, taken: Taken, reached_ms: int | None) -> Taken:
        """Returns the leading records that a replay has reached, and holds the rest. All are due if
        `reached_ms` is None."""
        if self.time_column is None or reached_ms is None:
            return taken
        times = np.maximum.accumulate(times_of(taken.records, self.time_column))
        due = int(np.searchsorted(times, reached_ms, side="right"))
        if due == taken.records.num_rows:
            return taken
        head, self.held = taken.divided(due)
        return head

    def on_handed_out(self, taken: Taken) -> int:
        """Moves the position behind the last record; returns the distance, gaps included."""
        self.silent_since_ms = None
        distance = self.on_passed(taken)
        if self.time_column is not None:
            records = with_event_time(taken.records, self.time_column)
            if records.num_rows:
                self.generator.on_batch(records, times_of(records, self.time_column))
        return distance

    def on_passed(self, taken: Taken) -> int:
        """Moves the position, even if there are no rows; returns the distance."""
        before = self.next_offset
        self.next_offset = taken.end_from(before)
        return self.next_offset - before

    def is_idle(self, now_ms: float) -> bool:
        """Call when the split was empty."""
        if self.silent_since_ms is None:
            self.silent_since_ms = now_ms
        limit_ms = self.strategy.idle_after_ms
        return limit_ms is not None and now_ms - self.silent_since_ms >= limit_ms

    def watermark_ms(self) -> int:
        """Returns the known event time: behind the newest record, or before the held one.

        Only the end of the splits ends event time; a record never does, whatever its time.
        """
        known_ms = self.generator.watermark_ms()
        watermark_ms = MIN_WATERMARK_MS if known_ms is None else known_ms
        return min(max(watermark_ms, self._before_held_ms()), MAX_WATERMARK_MS - 1)

    def far_ahead_count(self) -> int:
        """Returns how many records had a time too far ahead to be accepted."""
        generator = self.generator
        return generator.far_ahead_count if isinstance(generator, BoundedOutOfOrderness) else 0

    def _before_held_ms(self) -> int:
        if self.held is None or self.time_column is None or self.strategy.create is not None:
            return MIN_WATERMARK_MS
        first_ms = int(times_of(self.held.records.slice(0, 1), self.time_column)[0])
        return first_ms - self.strategy.out_of_orderness_ms - 1


def with_event_time(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """Returns the batch without dead letters (`connectors.dead_letters`): they advance no time."""
    times = batch.column(column)
    return batch.filter(times.is_valid()) if times.null_count else batch


def times_of(batch: pa.RecordBatch, column: str) -> Times:
    return longs(batch.column(column))


MS_PER_HOUR = 3_600_000


@dataclass(slots=True)
class Pace:
    """The event time at the start of the attempt, and its speed from there."""

    anchor_ms: int
    event_hours_per_s: float
    started_ms: float

    def reached_ms(self, now_ms: float) -> int:
        seconds = (now_ms - self.started_ms) / 1000.0
        return self.anchor_ms + int(seconds * self.event_hours_per_s * MS_PER_HOUR)


def pace_of(
    source: AnySource,
    restored: tuple[Json, ...],
    parallelism: int,
    clock: Clock,
    event_hours_per_s: float | None,
) -> Pace | None:
    """Returns the pace. All subtasks compute the same anchor: the earliest record that any of them
    has to read."""
    if event_hours_per_s is None or isinstance(source, GrowingSource):
        return None  # a growing source sets its own pace
    positions = [deal(restored, subtask, parallelism) for subtask in range(parallelism)]
    current = [position.current() for position in positions]
    times = [source.event_time_ms(*place) for place in current if place is not None]
    known = [time for time in times if time is not None]
    return Pace(min(known, default=0), event_hours_per_s, clock.monotonic_ms())
