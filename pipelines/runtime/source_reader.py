"""Reads a source's splits for one subtask, knows its positions, and paces a replay.

The position always points behind the last record handed out, so that a barrier between two
batches cuts exactly there. A paced replay hands out records once event time, advancing at a fixed
speed from where the run (re)starts, has reached them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.connectors.positions import SplitPositions, initial, redistribute
from pipelines.connectors.reachability import SplitMemory
from pipelines.connectors.source import Source
from pipelines.domain.clock import Clock
from pipelines.domain.elements import MAX_WATERMARK_MS
from pipelines.domain.snapshots import Json

MS_PER_HOUR = 3_600_000
PACED_WAIT_MS = 20.0
"""How long a paced source sleeps when nothing is due."""


@dataclass(slots=True)
class Pace:
    """Event time at the start of the attempt, and how fast it goes on from there."""

    anchor_ms: int
    event_hours_per_s: float
    started_ms: float

    def reached_ms(self, now_ms: float) -> int:
        seconds = (now_ms - self.started_ms) / 1000.0
        return self.anchor_ms + int(seconds * self.event_hours_per_s * MS_PER_HOUR)


@dataclass(frozen=True, slots=True)
class SplitInWork:
    """Where the newest batch came from: the records before `next_offset`."""

    name: str
    next_offset: int


class SourceReader:
    def __init__(
        self,
        source: Source,
        restored: tuple[Json, ...],
        subtask: int,
        parallelism: int,
        clock: Clock,
        event_hours_per_s: float | None,
    ) -> None:
        self._source = source
        self._clock = clock
        self._positions = _deal(restored, subtask, parallelism)
        self._memory = SplitMemory(source, [SplitPositions.from_json(one) for one in restored])
        self._pace = _pace(source, restored, parallelism, clock, event_hours_per_s)
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._held: pa.RecordBatch | None = None  # read, but not yet due
        self._newest_ms: int | None = None
        self.split: SplitInWork | None = None  # None: nothing was handed out yet

    @property
    def is_exhausted(self) -> bool:
        return self._current_split() is None

    def positions(self) -> Json:
        return self._memory.beside(self._positions).to_json()

    def next(self) -> pa.RecordBatch | None:
        """The next batch, or None when nothing is due or nothing is left."""
        while (split := self._current_split()) is not None:
            batch = self._held if self._held is not None else self._read_on(*split)
            self._held = None
            if batch is None:
                self._positions = self._positions.finished(self._has_split)
                self._batches = None
                continue
            return self._due_part(batch)
        return None

    def watermark_ms(self) -> int | None:
        """What is known of event time: behind the newest record, or before the next one."""
        if self.is_exhausted:
            return MAX_WATERMARK_MS
        column = self._source.timestamp_column
        if column is None:
            return None
        known_ms = self._newest_ms
        if self._pace is not None and self._held is not None and self._held.num_rows:
            known_ms = _timestamps(self._held, column)[0].item()
        if known_ms is None:
            return None
        return known_ms - self._source.out_of_orderness_ms - 1

    def _current_split(self) -> tuple[int, int] | None:
        current = self._positions.current()
        if current is None or self._source.split_id(current[0]) is None:
            return None
        return current

    def _has_split(self, index: int) -> bool:
        return self._source.split_id(index) is not None

    def _read_on(self, index: int, offset: int) -> pa.RecordBatch | None:
        if self._batches is None:
            self._memory.on_opened(index, offset)
            self._batches = iter(self._source.read(index, offset))
        return next(self._batches, None)

    def _due_part(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The leading records that are due; the rest is held until its time has come."""
        column = self._source.timestamp_column
        if column is None:
            return self._hand_out(batch)
        timestamps = np.maximum.accumulate(_timestamps(batch, column))
        due = len(timestamps)
        if self._pace is not None:
            reached_ms = self._pace.reached_ms(self._clock.monotonic_ms())
            due = int(np.searchsorted(timestamps, reached_ms, side="right"))
        if due < batch.num_rows:
            self._held = batch.slice(due)
        if due == 0:
            return None
        newest_ms = timestamps[due - 1].item()
        self._newest_ms = newest_ms if self._newest_ms is None else max(self._newest_ms, newest_ms)
        return self._hand_out(batch.slice(0, due))

    def _hand_out(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        split = self._current_split()
        self._positions = self._positions.advanced(batch.num_rows)
        if split is not None:
            index, offset = split
            name = self._source.split_id(index) or str(index)
            self.split = SplitInWork(name, offset + batch.num_rows)
        return batch


def _deal(restored: tuple[Json, ...], subtask: int, parallelism: int) -> SplitPositions:
    if not restored:
        return initial(subtask, parallelism)
    old = [SplitPositions.from_json(position) for position in restored]
    return redistribute(old, subtask, parallelism)


def _pace(
    source: Source,
    restored: tuple[Json, ...],
    parallelism: int,
    clock: Clock,
    event_hours_per_s: float | None,
) -> Pace | None:
    """All subtasks compute the same anchor: the earliest record that any of them has to read."""
    if event_hours_per_s is None:
        return None
    positions = [_deal(restored, subtask, parallelism) for subtask in range(parallelism)]
    current = [position.current() for position in positions]
    times = [source.event_time_ms(*place) for place in current if place is not None]
    known = [time for time in times if time is not None]
    return Pace(min(known, default=0), event_hours_per_s, clock.monotonic_ms())


def _timestamps(batch: pa.RecordBatch, column: str) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.asarray(batch.column(column).cast(pa.int64()).to_numpy(zero_copy_only=False))
