"""Decides which rows still have an open window; counts the others and sends them to a side output.

A row is late when every window that it belongs to is closed: admitting it would start them again. A
window stays open for the allowed lateness beyond its end. The decision includes event time at the
restored cut; otherwise a recovery would change which rows are late. The operators over windows of
one input inherit from here the key, event time, and which rows may enter; they decide which windows
there are and what they emit.

Source: Flink's `WindowOperator.isWindowLate` and `sideOutputLateData`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.operators.columns import Longs, check_event_time, field_of, longs, rows_with
from pipelines.operators.event_time import KeyedTime
from pipelines.operators.operator import Operator, OperatorContext, SideOutput
from pipelines.operators.windowing.windows import AlignedWindows

LATE = "late"
"""The side output of late rows."""

LATE_RECORDS = "late_records"
RECORDS_WITHOUT_TIME = "records_without_time"
RECORDS_OUTSIDE_WINDOWS = "records_outside_windows"
"""Counts rows in the gaps between windows, if windows start less often than they are long."""

COMBINED_ROWS = "__combined_rows"
"""The column that says how many rows were combined into one; see `combining`."""


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
        """Windows that start at or before this take no more rows, whatever the key."""
        return self.windows.newest_due(self.time.watermark_ms - self.lateness_ms)

    def is_open(self, starts: Longs, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """True where a window still takes rows of that row's key."""
        closed = self.time.of(rows) - self.lateness_ms + 1 - self.windows.size_ms
        return np.asarray(starts > closed)

    def is_due(self, starts: Longs, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """True where a window has been emitted for that row's key, or should have been."""
        return np.asarray(starts <= self.time.of(rows) + 1 - self.windows.size_ms)

    def admit(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Longs]:
        """The rows that are on time, and the event time of each."""
        rows, times = with_time(self.context, batch, self.time_column)
        newest = self.windows.newest_starts(times)
        rows, times, newest = self._within_windows(rows, times, newest)
        is_late = ~self.is_open(newest, rows)
        return without_late(self.context, rows, times, is_late, self.side)

    def admit_to_windows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Longs]:
        """One row for each window that takes it, and the start of the window."""
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
    """The rows with event time, and their times in milliseconds; counts the other rows."""
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
    """Count the late rows, send them to the side output, and return the others.

    Combined rows have no side output: where it is read, no rows are combined.
    """
    if not is_late.any():
        return rows, times
    late = rows.filter(pa.array(is_late))
    context.count(LATE_RECORDS, count_of(late))
    if COMBINED_ROWS not in late.schema.names:
        context.collect_side(side, late)
    return rows.filter(pa.array(~is_late)), times[~is_late]


def count_of(rows: pa.RecordBatch) -> int:
    """How many records the rows are made of."""
    if COMBINED_ROWS in rows.schema.names:
        return int(longs(rows.column(COMBINED_ROWS)).sum())
    return int(rows.num_rows)


class WindowOperator(Operator):
    """Rows that are too late for every window go to the side output `late`."""

    def __init__(self, keys: tuple[str, ...], time_column: str, lateness_ms: int) -> None:
        self._keys = keys
        self._time_column = time_column
        self._lateness_ms = lateness_ms

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return {LATE: SideOutput(inputs[0], self._time_column)}

    def _check_input(self, schema: pa.Schema) -> None:
        """Raises Rejected naming a column that is missing or holds no event time."""
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
