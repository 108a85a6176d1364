"""Windows of event time: which windows a row belongs to, when a window is due, and what is late.

A window is named by its start, in milliseconds since the epoch, and covers [start, start + size).
Arithmetic gives the bounds of tumbling and sliding windows. The bounds of a session depend on its
rows, so `sessions`, which keeps them, decides what it covers. In the output, `window_start` and
`window_end` bound the window. `window_time`, its last millisecond, is the event time of a result
whose window may overlap others (Flink gives results that timestamp).

A row is late when every window that it belongs to is closed: admitting it would start them again. A
window stays open for the allowed lateness beyond its end. The decision includes event time at the
restored cut; otherwise a recovery would change which rows are late. This module gives the operators
over windows of one input the key, event time, and the decision which rows may enter. The operators
decide which windows there are and what they emit.

Source: Flink's `TumblingEventTimeWindows`, `SlidingEventTimeWindows`, `EventTimeSessionWindows` and
`EventTimeTrigger`; Flink's `WindowOperator.isWindowLate` and `sideOutputLateData`.
"""

import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import (
    EVENT_TIME,
    Longs,
    check_event_time,
    field_of,
    longs,
    rows_with,
    timestamps,
)
from pipelines.operators.event_time import KeyedTime
from pipelines.operators.operator import Operator, OperatorContext, SideOutput


@dataclass(frozen=True, slots=True)
class TumblingWindows:
    """Each row has one window. `offset_ms` moves all windows, as to a time zone's midnight."""

    size_ms: int
    offset_ms: int = 0

    @property
    def slide_ms(self) -> int:
        return self.size_ms

    @property
    def pane_ms(self) -> int:
        """Rows within one pane share all their windows."""
        return math.gcd(self.size_ms, self.slide_ms)

    @property
    def is_tumbling(self) -> bool:
        """True if a window's start is enough as its name and as the event time of its result."""
        return True

    @property
    def overlap(self) -> bool:
        """True if a row may belong to several windows."""
        return self.slide_ms < self.size_ms

    def panes(self, times_ms: Longs) -> Longs:
        return _floor(times_ms, self.pane_ms, self.offset_ms)

    def newest_starts(self, times_ms: Longs) -> Longs:
        """Returns the last window to which each row may belong."""
        return _floor(times_ms, self.slide_ms, self.offset_ms)

    def assign(self, times_ms: Longs) -> tuple[Longs, Longs]:
        """Returns all pairs of a row's position and one of its windows; a row's newest first."""
        newest = self.newest_starts(times_ms)
        count = -(-self.size_ms // self.slide_ms)
        rows = np.repeat(np.arange(len(times_ms)), count)
        back = np.tile(np.arange(count) * self.slide_ms, len(times_ms))
        starts = newest[rows] - back
        is_covered = times_ms[rows] < starts + self.size_ms
        return rows[is_covered], starts[is_covered]

    def newest_due(self, watermark_ms: int) -> int:
        """Windows that start at or before this have ended: no row can enter them any more."""
        return watermark_ms + 1 - self.size_ms


@dataclass(frozen=True, slots=True)
class SlidingWindows(TumblingWindows):
    """A window starts every `every_ms`; if that is less than the size, windows overlap."""

    every_ms: int = field(kw_only=True)

    @property
    def slide_ms(self) -> int:
        return self.every_ms

    @property
    def is_tumbling(self) -> bool:
        return False


AlignedWindows: TypeAlias = TumblingWindows | SlidingWindows


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Rows of one key that follow each other within the gap. The gap also ends a session."""

    gap_ms: int

    @property
    def is_tumbling(self) -> bool:
        return False

    @property
    def overlap(self) -> bool:
        return False


Windows: TypeAlias = AlignedWindows | SessionWindows

_NOTHING = timedelta()


def tumbling(
    size: timedelta = _NOTHING,
    /,
    *,
    days: int = 0,
    hours: int = 0,
    minutes: int = 0,
    seconds: int = 0,
    milliseconds: int = 0,
    offset: timedelta = _NOTHING,
) -> TumblingWindows:
    """Takes a timedelta or units, which add up. Raises Rejected unless the sum is positive."""
    size += timedelta(
        days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
    )
    return TumblingWindows(_positive_ms(size, "A window", "size"), _ms(offset))


def sliding(size: timedelta, *, every: timedelta, offset: timedelta = _NOTHING) -> SlidingWindows:
    """Windows of `size`; one starts per `every`. Raises Rejected unless both are positive."""
    size_ms = _positive_ms(size, "A window", "size")
    return SlidingWindows(size_ms, _ms(offset), every_ms=_positive_ms(every, "A slide", "length"))


def session(
    gap: timedelta = _NOTHING,
    /,
    *,
    days: int = 0,
    hours: int = 0,
    minutes: int = 0,
    seconds: int = 0,
    milliseconds: int = 0,
) -> SessionWindows:
    """Sessions that end after this much silence, given as a timedelta or in units.

    Raises Rejected unless the gap is positive.
    """
    gap += timedelta(
        days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
    )
    return SessionWindows(_positive_ms(gap, "A session's gap", "length"))


def _floor(times_ms: Longs, width_ms: int, offset_ms: int) -> Longs:
    """Returns the multiple of the width, plus the offset, at or before each time, also below 0."""
    return times_ms - (times_ms - offset_ms) % width_ms


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _positive_ms(duration: timedelta, what: str, measure: str) -> int:
    length_ms = _ms(duration)
    if length_ms <= 0:
        raise Rejected(f"{what} of {length_ms} ms cannot be; its {measure} must be positive.")
    return length_ms


WINDOW_START = "window_start"
WINDOW_END = "window_end"
WINDOW_TIME = "window_time"
BOUNDS = (WINDOW_START, WINDOW_END, WINDOW_TIME)


def with_window(batch: pa.RecordBatch, starts: Longs) -> pa.RecordBatch:
    """Adds the window start; replaces an input column of that name, left from earlier windows."""
    others = batch.select([name for name in batch.schema.names if name != WINDOW_START])
    return others.append_column(pa.field(WINDOW_START, EVENT_TIME), timestamps(starts))


def with_bounds(
    results: pa.RecordBatch, key_count: int, starts: Longs, ends: Longs
) -> pa.RecordBatch:
    """Puts the three columns between the keys and the rest."""
    bounds = [timestamps(starts), timestamps(ends), timestamps(ends - 1)]
    columns = [*results.columns[:key_count], *bounds, *results.columns[key_count:]]
    return pa.RecordBatch.from_arrays(columns, schema=bounded_schema(results.schema, key_count))


def bounded_schema(schema: pa.Schema, key_count: int) -> pa.Schema:
    fields = list(schema)
    bounds = [pa.field(name, EVENT_TIME) for name in BOUNDS]
    return pa.schema([*fields[:key_count], *bounds, *fields[key_count:]])


def in_order(results: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Sorts, so that the same state is always emitted in the same order."""
    order = [(column, "ascending") for column in columns]
    return results.take(pc.sort_indices(results, sort_keys=order))


LATE = "late"
"""The side output of late rows."""

LATE_RECORDS = "late_records"
RECORDS_WITHOUT_TIME = "records_without_time"
RECORDS_OUTSIDE_WINDOWS = "records_outside_windows"
"""Counts rows in the gaps between windows, if the windows are shorter than their slide."""

COMBINED_ROWS = "__combined_rows"
"""The column with the number of rows that were combined into one; see `combining`."""


@dataclass(slots=True)
class WindowEntry:
    windows: AlignedWindows
    time_column: str
    context: OperatorContext
    time: KeyedTime
    lateness_ms: int = 0
    side: str = LATE  # the output for late rows

    @property
    def newest_closed(self) -> int:
        """Windows that start at or before this take no more rows, for any key."""
        return self.windows.newest_due(self.time.watermark_ms - self.lateness_ms)

    def is_open(self, starts: Longs, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """True where a window still takes rows of that row's key."""
        closed = self.time.of(rows) - self.lateness_ms + 1 - self.windows.size_ms
        return np.asarray(starts > closed)

    def is_due(self, starts: Longs, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """True where a window has been emitted for that row's key, or should have been."""
        return np.asarray(starts <= self.time.of(rows) + 1 - self.windows.size_ms)

    def admit(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Longs]:
        """Returns the rows that are on time, and the event time of each."""
        rows, times = with_time(self.context, batch, self.time_column)
        newest = self.windows.newest_starts(times)
        rows, times, newest = self._within_windows(rows, times, newest)
        is_late = ~self.is_open(newest, rows)
        return without_late(self.context, rows, times, is_late, self.side)

    def admit_to_windows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Longs]:
        """Returns a row once for each window that takes it, and the start of the window."""
        rows, times = self.admit(batch)
        if self.windows.is_tumbling:
            return rows, self.windows.newest_starts(times)
        positions, starts = self.windows.assign(times)
        of_windows = rows.take(pa.array(positions))
        is_open = self.is_open(starts, of_windows)
        return rows_with(of_windows, is_open), starts[is_open]

    def _within_windows(
        self, rows: pa.RecordBatch, times: Longs, newest: Longs
    ) -> tuple[pa.RecordBatch, Longs, Longs]:
        if self.windows.slide_ms <= self.windows.size_ms:
            return rows, times, newest
        is_within = times < newest + self.windows.size_ms
        outside = rows.filter(pa.array(~is_within))
        self.context.count(RECORDS_OUTSIDE_WINDOWS, count_of(outside))
        return rows.filter(pa.array(is_within)), times[is_within], newest[is_within]


def with_time(
    context: OperatorContext, batch: pa.RecordBatch, time_column: str
) -> tuple[pa.RecordBatch, Longs]:
    """Returns the rows with event time, and their times in milliseconds; counts the other rows."""
    event_time = batch.column(time_column)
    if event_time.null_count:
        without = batch.filter(pc.is_null(event_time))
        context.count(RECORDS_WITHOUT_TIME, count_of(without))
        batch = batch.filter(pc.is_valid(event_time))
    return batch, longs(batch.column(time_column))


def without_late(
    context: OperatorContext,
    rows: pa.RecordBatch,
    times: Longs,
    is_late: npt.NDArray[np.bool_],
    side: str = LATE,
) -> tuple[pa.RecordBatch, Longs]:
    """Counts the late rows, sends them to the side output, and returns the others.

    Combined rows have no side output, because rows are not combined if a stream reads it.
    """
    if not is_late.any():
        return rows, times
    late = rows.filter(pa.array(is_late))
    context.count(LATE_RECORDS, count_of(late))
    if COMBINED_ROWS not in late.schema.names:
        context.collect_side(side, late)
    return rows.filter(pa.array(~is_late)), times[~is_late]


def count_of(rows: pa.RecordBatch) -> int:
    """Returns the number of records that the rows are made of."""
    if COMBINED_ROWS in rows.schema.names:
        return int(longs(rows.column(COMBINED_ROWS)).sum())
    return int(rows.num_rows)


class WindowOperator(Operator):
    """An operator over windows. Rows too late for every window go to the side output `late`."""

    def __init__(self, keys: tuple[str, ...], time_column: str, lateness_ms: int) -> None:
        self._keys = keys
        self._time_column = time_column
        self._lateness_ms = lateness_ms

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return {LATE: SideOutput(inputs[0], self._time_column)}

    def _check_input(self, schema: pa.Schema) -> None:
        """Raises Rejected naming a column that is missing or has no event time."""
        check_event_time(schema, self._time_column)
        for key in self._keys:
            field_of(schema, key)


class AlignedOperator(WindowOperator):
    def __init__(
        self, keys: tuple[str, ...], time_column: str, windows: AlignedWindows, lateness_ms: int
    ) -> None:
        super().__init__(keys, time_column, lateness_ms)
        self._windows = windows

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._entry = WindowEntry(
            self._windows,
            self._time_column,
            context,
            KeyedTime(context, self._keys),
            self._lateness_ms,
        )
