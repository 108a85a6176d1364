"""Equi-join of two streams within tumbling or sliding windows of event time.

Both sides are buffered by window until the watermark, the smaller one of the two inputs, makes the
window due; then all due windows are joined in one go, with the window as one more column of the
key. Every matching pair counts. Null equals nothing, as in SQL. Left rows that matched nothing
are counted: an inner join loses them, and people ask how many. An outer join gives out what it
keeps without a partner when the window is due, so that nothing is ever taken back.

Source: Flink's `WindowJoinOperator`.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.operators.aggregation import check_distinct
from pipelines.operators.columns import (
    Longs,
    by_value,
    check_event_time,
    in_slices,
    longs,
    single_batch,
)
from pipelines.operators.joined_columns import (
    LATE_SIDES,
    SIDES,
    JoinedColumns,
    JoinKind,
    late_sides,
)
from pipelines.operators.keyed_time import KeyedTime
from pipelines.operators.lateness import WindowEntry
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.row_lists import row_list
from pipelines.operators.side_output import SideOutput
from pipelines.operators.window_columns import BOUNDS, bounded_schema, with_bounds
from pipelines.operators.windows import AlignedWindows
from pipelines.state.backend import BatchList

UNMATCHED_LEFT = "unmatched_left"
_WINDOW = "__window"
_ROW = "__row_of_"


@dataclass(slots=True)
class _Side:
    schema: pa.Schema
    entry: WindowEntry
    buffered: BatchList

    def add(self, batch: pa.RecordBatch) -> None:
        in_time, starts = self.entry.admit_to_windows(batch)
        for start, rows in by_value(in_time, starts):
            self.buffered.append(start, rows)

    def take_due(self, newest_due: int) -> tuple[pa.RecordBatch, Longs]:
        """Remove and return the rows of all due windows, with the window of each."""
        batches: list[pa.RecordBatch] = []
        starts: list[Longs] = []
        for start in self.buffered.namespaces_at_most(newest_due):
            for batch in self.buffered.pop(start):
                batches.append(batch)
                starts.append(np.full(batch.num_rows, start, np.int64))
        rows = single_batch(pa.Table.from_batches(batches, self.schema))
        return rows, np.concatenate([_NO_ROWS, *starts])


class WindowJoin(Operator):
    """Port 0 is left, port 1 right. Emits left columns, then right ones that are no key.

    Unless it is an inner join within tumbling windows, the bounds of the window follow: then the
    row's own event time may be null, or lie behind that of the window's end.
    """

    def __init__(
        self,
        on: tuple[str, ...],
        time_columns: tuple[str, str],
        windows: AlignedWindows,
        kind: JoinKind = JoinKind.INNER,
    ) -> None:
        self._on = on
        self._time_columns = time_columns
        self._windows = windows
        self._kind = kind

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        for schema, time_column in zip(inputs, self._time_columns, strict=True):
            check_event_time(schema, time_column)
        joined = JoinedColumns.of(self._on, *inputs).schema
        if not has_bounds(self._windows, self._kind):
            return joined
        check_distinct([*joined.names, *BOUNDS])
        return bounded_schema(joined, len(joined))

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return late_sides(inputs, self._time_columns)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._columns = JoinedColumns.of(self._on, *inputs)
        self._left, self._right = (
            self._open_side(port, schema) for port, schema in enumerate(inputs)
        )

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        (self._left, self._right)[port].add(batch)

    def on_watermark(self, timestamp_ms: int) -> None:
        for side in (self._left, self._right):
            side.entry.time.advance(timestamp_ms)
        newest_due = self._windows.newest_due(timestamp_ms)
        left, left_windows = self._left.take_due(newest_due)
        right, right_windows = self._right.take_due(newest_due)
        left_rows, right_rows = self._pairs(left, left_windows, right, right_windows)
        pairs = self._columns.pairs(left.take(left_rows), right.take(right_rows))
        self._emit(pairs, left_windows[left_rows])
        unmatched = _others(left_rows, left.num_rows)
        if len(unmatched):
            self.context.count(UNMATCHED_LEFT, len(unmatched))
        if self._kind.keeps(0):
            self._emit(self._columns.alone(left.take(unmatched)), left_windows[unmatched])
        if self._kind.keeps(1):
            alone = _others(right_rows, right.num_rows)
            self._emit(self._columns.alone(right.take(alone)), right_windows[alone])

    def _emit(self, rows: pa.RecordBatch, windows: Longs) -> None:
        if has_bounds(self._windows, self._kind):
            rows = with_bounds(rows, rows.num_columns, windows, windows + self._windows.size_ms)
        for piece in in_slices(rows):
            self.context.collect(piece)

    def _open_side(self, port: int, schema: pa.Schema) -> _Side:
        context, time_column = self.context, self._time_columns[port]
        time = KeyedTime(context, self._on)
        entry = WindowEntry(self._windows, time_column, context, time, side=LATE_SIDES[port])
        descriptor = row_list(SIDES[port], schema, self._on, time_column)
        return _Side(schema, entry, context.state.batch_list(descriptor))

    def _pairs(
        self,
        left: pa.RecordBatch,
        left_windows: Longs,
        right: pa.RecordBatch,
        right_windows: Longs,
    ) -> tuple[Longs, Longs]:
        """Row numbers of all matching pairs, in order of arrival of the left row, then the right.

        Only keys and row numbers go through the join, so columns of any type may ride along.
        """
        if left.num_rows == 0 or right.num_rows == 0:
            return _NO_ROWS, _NO_ROWS
        left_keys, right_keys = (
            self._keys_of(rows, windows, side)
            for rows, windows, side in zip(
                (left, right), (left_windows, right_windows), SIDES, strict=True
            )
        )
        on = [*self._on, _WINDOW]
        pairs = left_keys.join(right_keys, on, join_type="inner", use_threads=False)
        left_rows, right_rows = (longs(single_batch(pairs).column(_ROW + side)) for side in SIDES)
        order = np.lexsort((right_rows, left_rows))
        return left_rows[order], right_rows[order]

    def _keys_of(self, rows: pa.RecordBatch, windows: Longs, side: str) -> pa.Table:
        keys = pa.Table.from_batches([rows.select(list(self._on))])
        numbered = keys.append_column(_ROW + side, pa.array(np.arange(rows.num_rows)))
        return numbered.append_column(_WINDOW, pa.array(windows))


_NO_ROWS: Longs = np.empty(0, np.int64)


def has_bounds(windows: AlignedWindows, kind: JoinKind) -> bool:
    return kind is not JoinKind.INNER or not windows.is_tumbling


def _others(rows: Longs, count: int) -> Longs:
    is_other = np.ones(count, np.bool_)
    is_other[rows] = False
    return np.flatnonzero(is_other)
