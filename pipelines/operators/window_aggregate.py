"""Aggregates per key and tumbling window of event time; a window is emitted once, when it is due.

State: one row per key and open window. All windows that a watermark makes due are read, emitted
and deleted together. Rows that come after their window are dropped and counted.

Source: Flink's `WindowOperator` with `EventTimeTrigger` and no allowed lateness.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.operators.aggregates import Aggregate
from pipelines.operators.aggregation import Aggregation
from pipelines.operators.columns import (
    EVENT_TIME,
    Longs,
    check_event_time,
    in_slices,
    timestamps,
)
from pipelines.operators.grouping import group
from pipelines.operators.lateness import WindowEntry
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.windows import TumblingWindows

WINDOW_START = "window_start"


class WindowAggregate(Operator):
    """Emits keys, `window_start`, aggregates; by window, then by key."""

    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: TumblingWindows,
        aggregates: Mapping[str, Aggregate],
    ) -> None:
        self._keys = keys
        self._time_column = time_column
        self._windows = windows
        self._aggregates = dict(aggregates)

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return self._bind(inputs[0]).output_schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._aggregation = self._bind(inputs[0])
        self._open_windows = context.state.table(
            self._aggregation.descriptor("windows", self._keys)
        )
        self._entry = WindowEntry(
            self._windows, self._time_column, context, context.restored_watermark_ms
        )

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        in_time, starts = self._entry.admit(batch)
        if in_time.num_rows == 0:
            return
        windowed = _with_window(in_time, starts)
        groups = group(windowed, self._aggregation.key_names)
        reduced = self._aggregation.reduce(self._aggregation.lift(windowed), groups)
        self._aggregation.fold(self._open_windows, groups.keys, reduced)

    def on_watermark(self, timestamp_ms: int) -> None:
        self._entry.watermark_ms = timestamp_ms
        due = self._open_windows.select_at_most(
            WINDOW_START, self._windows.newest_due(timestamp_ms)
        )
        if len(due) == 0:
            return
        keys = self._open_windows.keys(due)
        names = [accumulator.name for accumulator in self._aggregation.accumulators]
        accumulated = [self._open_windows.read(name, due) for name in names]
        self._open_windows.delete(due)
        for piece in in_slices(self._in_order(self._aggregation.results(keys, accumulated))):
            self.context.collect(piece)

    def _in_order(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """The same state is emitted in the same order, whatever order it came in."""
        order = [(WINDOW_START, "ascending"), *((key, "ascending") for key in self._keys)]
        return results.take(pc.sort_indices(results, sort_keys=order))

    def _bind(self, schema: pa.Schema) -> Aggregation:
        check_event_time(schema, self._time_column)
        windowed = _with_window(pa.RecordBatch.from_pylist([], schema=schema), _NO_STARTS).schema
        return Aggregation.of((*self._keys, WINDOW_START), self._aggregates, windowed)


_NO_STARTS: Longs = np.empty(0, np.int64)


def _with_window(batch: pa.RecordBatch, starts: Longs) -> pa.RecordBatch:
    """A column of that name in the input, from windows before these, gives way."""
    others = batch.select([name for name in batch.schema.names if name != WINDOW_START])
    return others.append_column(pa.field(WINDOW_START, EVENT_TIME), timestamps(starts))
