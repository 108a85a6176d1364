"""Inner equi-join of two streams within tumbling or sliding windows of event time.

Both sides are buffered by window until the watermark, the smaller one of the two inputs, makes the
window due; then all due windows are joined in one go, with the window as one more column of the
key. Every matching pair counts. Null equals nothing, as in SQL. Left rows that matched nothing
are counted: an inner join loses them, and people ask how many.

Source: Flink's `WindowJoinOperator` (inner join).
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import (
    Longs,
    by_value,
    check_event_time,
    field_of,
    in_slices,
    longs,
    single_batch,
)
from pipelines.operators.lateness import WindowEntry
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.windows import AlignedWindows
from pipelines.state.backend import BatchList, BatchListDescriptor

UNMATCHED_LEFT = "unmatched_left"
SIDES = ("left", "right")
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
    """Port 0 is left, port 1 right. Emits left columns, then right ones that are no key."""

    def __init__(
        self, on: tuple[str, ...], time_columns: tuple[str, str], windows: AlignedWindows
    ) -> None:
        self._on = on
        self._time_columns = time_columns
        self._windows = windows

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        left, right = inputs
        for schema, time_column in zip(inputs, self._time_columns, strict=True):
            check_event_time(schema, time_column)
        for column in self._on:
            _check_comparable(column, left, right)
        added = [field for field in right if field.name not in self._on]
        for field in added:
            if field.name in left.names:
                raise Rejected(f"Both sides have a column {field.name!r}; rename one of them.")
        return pa.schema([*left, *added])

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._schema = self.output_schema(inputs)
        self._left, self._right = (
            self._open_side(side, schema, time_column)
            for side, schema, time_column in zip(SIDES, inputs, self._time_columns, strict=True)
        )

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        (self._left, self._right)[port].add(batch)

    def on_watermark(self, timestamp_ms: int) -> None:
        for side in (self._left, self._right):
            side.entry.watermark_ms = timestamp_ms
        newest_due = self._windows.newest_due(timestamp_ms)
        left, left_windows = self._left.take_due(newest_due)
        right, right_windows = self._right.take_due(newest_due)
        left_rows, right_rows = self._pairs(left, left_windows, right, right_windows)
        unmatched = left.num_rows - len(np.unique(left_rows))
        if unmatched:
            self.context.count(UNMATCHED_LEFT, unmatched)
        for piece in in_slices(self._joined(left.take(left_rows), right.take(right_rows))):
            self.context.collect(piece)

    def _open_side(self, side: str, schema: pa.Schema, time_column: str) -> _Side:
        context = self.context
        entry = WindowEntry(self._windows, time_column, context, context.restored_watermark_ms)
        descriptor = BatchListDescriptor(
            name=side,
            schema=schema,
            key_group_by=self._on,
            # A column that the input gained is null in rows that were buffered before.
            defaults={n: None for n in schema.names if n not in (*self._on, time_column)},
        )
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

    def _joined(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        added = [right.column(n) for n in right.schema.names if n not in self._on]
        return pa.RecordBatch.from_arrays([*left.columns, *added], schema=self._schema)


_NO_ROWS: Longs = np.empty(0, np.int64)


def _check_comparable(column: str, left: pa.Schema, right: pa.Schema) -> None:
    left_type, right_type = field_of(left, column).type, field_of(right, column).type
    if left_type != right_type:
        raise Rejected(
            f"The join column {column!r} is {left_type} on the left and {right_type} on the right;"
            " both sides must have the same type."
        )
