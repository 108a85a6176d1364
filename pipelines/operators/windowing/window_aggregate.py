"""Aggregates per key and tumbling or sliding window of event time; emits when a window is due.

State: one row per key and open window. Each batch is first reduced by key and pane (rows that share
all their windows), so that overlapping windows cost per key and not per record. All windows that a
watermark makes due are read and emitted together.

With an allowed lateness, a window stays for that long after it was due. Rows that come meanwhile
emit its result again, complete, so that an upsert by key and window is right. Rows that come after
that are counted, and go to the side output `late`.

Source: Flink's `WindowOperator` with `EventTimeTrigger`; panes as in its window table functions.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipelines.operators.aggregating.aggregates import Aggregate, Values
from pipelines.operators.aggregating.aggregation import Aggregation, check_distinct
from pipelines.operators.columns import Longs, check_event_time, group, in_slices, longs, timestamps
from pipelines.operators.operator import OperatorContext
from pipelines.operators.windowing.lateness import AlignedOperator
from pipelines.operators.windowing.windows import (
    BOUNDS,
    WINDOW_START,
    AlignedWindows,
    bounded_schema,
    in_order,
    with_bounds,
    with_window,
)
from pipelines.state.backend import Rows, TableDescriptor

_EMITTED = "__emitted"


class WindowAggregate(AlignedOperator):
    """Emits keys, `window_start`, aggregates; by window, then by key.

    Unless windows are tumbling they may overlap; then `window_end` and `window_time` follow.
    """

    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: AlignedWindows,
        aggregates: Mapping[str, Aggregate],
        lateness_ms: int = 0,
    ) -> None:
        super().__init__(keys, time_column, windows, lateness_ms)
        self._aggregates = dict(aggregates)

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        schema = self._bind(inputs[0]).output_schema
        if self._windows.is_tumbling:
            return schema
        check_distinct([*self._keys, *BOUNDS, *self._aggregates])
        without_start = schema.remove(schema.get_field_index(WINDOW_START))
        return bounded_schema(without_start, len(self._keys))

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._aggregation = self._bind(inputs[0])
        self._open_windows = context.state.table(self._descriptor())

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        in_time, times = self._entry.admit(batch)
        if in_time.num_rows == 0:
            return
        panes = with_window(in_time, self._windows.panes(times))
        groups = group(panes, self._aggregation.key_names)
        reduced = self._aggregation.reduce(self._aggregation.lift(panes), groups)
        keys, reduced = self._by_window(groups.keys, reduced)
        self._aggregation.fold(self._open_windows, keys, reduced)
        if self._lateness_ms:
            self._emit_again(keys)

    def on_watermark(self, timestamp_ms: int) -> None:
        self._entry.time.advance(timestamp_ms)
        due = self._at_most(self._windows.newest_due(timestamp_ms))
        if len(due) == 0:
            return
        self._emit(due[~self._is_emitted(due)])
        closed = self._at_most(self._entry.newest_closed) if self._lateness_ms else due
        self._open_windows.delete(closed)

    def _by_window(
        self, panes: pa.RecordBatch, reduced: list[Values]
    ) -> tuple[pa.RecordBatch, list[Values]]:
        """Merges the contents of each pane into each open window that covers the pane."""
        if self._windows.is_tumbling:
            return panes, reduced
        positions, starts = self._windows.assign(longs(panes.column(WINDOW_START)))
        of_panes = panes.take(pa.array(positions))
        is_open = self._entry.is_open(starts, of_panes)
        positions, starts = positions[is_open], starts[is_open]
        keys = of_panes.filter(pa.array(is_open)).set_column(
            panes.schema.get_field_index(WINDOW_START),
            panes.schema.field(WINDOW_START),
            timestamps(starts),
        )
        groups = group(keys, self._aggregation.key_names)
        spread = [values[positions] for values in reduced]
        return groups.keys, self._aggregation.reduce(spread, groups)

    def _emit_again(self, keys: pa.RecordBatch) -> None:
        is_due = self._entry.is_due(longs(keys.column(WINDOW_START)), keys)
        if is_due.any():
            self._emit(self._open_windows.rows_for(keys.filter(pa.array(is_due))))

    def _emit(self, rows: Rows) -> None:
        if len(rows) == 0:
            return
        names = [accumulator.name for accumulator in self._aggregation.accumulators]
        accumulated = [self._open_windows.read(name, rows) for name in names]
        results = self._aggregation.results(self._open_windows.keys(rows), accumulated)
        if not self._windows.is_tumbling:
            results = self._with_bounds(results)
        if self._lateness_ms:
            self._open_windows.write(_EMITTED, rows, np.ones(len(rows), np.bool_))
        for piece in in_slices(in_order(results, (WINDOW_START, *self._keys))):
            self.context.collect(piece)

    def _with_bounds(self, results: pa.RecordBatch) -> pa.RecordBatch:
        starts = longs(results.column(WINDOW_START))
        others = results.drop_columns([WINDOW_START])
        return with_bounds(others, len(self._keys), starts, starts + self._windows.size_ms)

    def _at_most(self, newest_start: int) -> Rows:
        return self._open_windows.select_at_most(WINDOW_START, newest_start)

    def _is_emitted(self, rows: Rows) -> Values:
        if not self._lateness_ms:
            return np.zeros(len(rows), np.bool_)
        return self._open_windows.read(_EMITTED, rows)

    def _descriptor(self) -> TableDescriptor:
        descriptor = self._aggregation.descriptor("windows", self._keys)
        if not self._lateness_ms:
            return descriptor
        return with_flag(descriptor, _EMITTED)

    def _bind(self, schema: pa.Schema) -> Aggregation:
        check_event_time(schema, self._time_column)
        windowed = with_window(pa.RecordBatch.from_pylist([], schema=schema), _NO_STARTS).schema
        return Aggregation.of((*self._keys, WINDOW_START), self._aggregates, windowed)


_NO_STARTS: Longs = np.empty(0, np.int64)


def with_flag(descriptor: TableDescriptor, flag: str) -> TableDescriptor:
    """The table with one more column, which is false until written."""
    return replace(
        descriptor,
        value=descriptor.value.append(pa.field(flag, pa.bool_())),
        defaults={**descriptor.defaults, flag: False},
    )
