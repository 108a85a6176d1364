"""Calls a function with all rows of each key and tumbling or sliding window, when it is due.

State: the rows themselves, once each, by pane (rows that share all their windows). With an allowed
lateness, rows that come after their window was due call the function again with all of its rows.

Source: Flink's `WindowOperator` with a `ProcessWindowFunction`.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pipelines.operators.columns import Longs, by_value, check_event_time, field_of
from pipelines.operators.grouping import group
from pipelines.operators.keyed_time import KeyedTime
from pipelines.operators.lateness import LATE, WindowEntry
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.row_lists import row_list
from pipelines.operators.side_output import SideOutput
from pipelines.operators.window_function import WindowCalls, WindowFunction
from pipelines.operators.windows import AlignedWindows


class WindowRows(Operator):
    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: AlignedWindows,
        function: WindowFunction,
        schema: pa.Schema,
        lateness_ms: int = 0,
    ) -> None:
        self._keys = keys
        self._time_column = time_column
        self._windows = windows
        self._function = function
        self._schema = schema
        self._lateness_ms = lateness_ms

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        check_event_time(inputs[0], self._time_column)
        for key in self._keys:
            field_of(inputs[0], key)
        return self._schema

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return {LATE: SideOutput(inputs[0], self._time_column)}

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._rows = context.state.batch_list(
            row_list("rows", inputs[0], self._keys, self._time_column)
        )
        self._calls = WindowCalls(self._function, self._schema, self._keys, context)
        self._entry = WindowEntry(
            self._windows,
            self._time_column,
            context,
            KeyedTime(context, self._keys),
            self._lateness_ms,
        )

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        in_time, times = self._entry.admit(batch)
        for pane, rows in by_value(in_time, self._windows.panes(times)):
            self._rows.append(pane, rows)
        if self._lateness_ms and in_time.num_rows:
            self._call_again(in_time, times)

    def on_watermark(self, timestamp_ms: int) -> None:
        called = self._newest_due()
        self._entry.time.advance(timestamp_ms)
        held = self._rows.namespaces_at_most(self._newest_pane())
        _, starts = self._windows.assign(np.array(held, np.int64))
        is_due = (starts > called) & (starts <= self._newest_due())
        is_closed = starts <= self._entry.newest_closed
        if is_due.any() or is_closed.any():
            self._call_for(np.unique(starts[is_due]).tolist())

    def _call_again(self, in_time: pa.RecordBatch, times: Longs) -> None:
        """For the keys that these rows add to a window that has been called for."""
        positions, starts = self._windows.assign(times)
        of_windows = in_time.take(pa.array(positions))
        is_due = self._entry.is_due(starts, of_windows) & self._entry.is_open(starts, of_windows)
        if not is_due.any():
            return
        panes = self._take(int(starts[is_due].max()) + self._windows.size_ms)
        touched = of_windows.select(list(self._keys)).filter(pa.array(is_due))
        for start, keys in by_value(touched, starts[is_due]):
            self._call(start, _of_keys(self._of_window(panes, start), keys))
        self._put_back(panes)

    def _call_for(self, windows: list[int]) -> None:
        panes = self._take(self._newest_pane())
        for start in windows:
            self._call(start, self._not_called(start, self._of_window(panes, start)))
        self._put_back(panes)

    def _not_called(self, start: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Without the keys for which the window was called before the cut of a restore."""
        called = self._windows.size_ms - 1 + start <= self._entry.time.restored_of(rows)
        return rows.filter(pa.array(np.broadcast_to(~called, rows.num_rows)))

    def _call(self, start: int, rows: pa.RecordBatch) -> None:
        starts = np.full(rows.num_rows, start, np.int64)
        self._calls.on_rows(rows, starts, starts + self._windows.size_ms)

    def _newest_due(self) -> int:
        return self._windows.newest_due(self._entry.time.watermark_ms)

    def _newest_pane(self) -> int:
        """Panes up to this one may belong to a window that is due."""
        return self._newest_due() + self._windows.size_ms - 1

    def _take(self, newest: int) -> dict[int, list[pa.RecordBatch]]:
        panes = self._rows.namespaces_at_most(newest)
        return {pane: self._rows.pop(pane) for pane in panes}

    def _put_back(self, panes: dict[int, list[pa.RecordBatch]]) -> None:
        """What belongs to a window that is not closed yet."""
        newest = self._windows.newest_starts(np.array(list(panes), np.int64)).tolist()
        for (pane, batches), newest_start in zip(panes.items(), newest, strict=True):
            if newest_start > self._entry.newest_closed:
                for batch in batches:
                    self._rows.append(pane, batch)

    def _of_window(self, panes: dict[int, list[pa.RecordBatch]], start: int) -> pa.RecordBatch:
        within = range(start, start + self._windows.size_ms)
        return pa.concat_batches(_flat(batches for p, batches in panes.items() if p in within))


def _flat(lists: Iterable[list[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    return [batch for batches in lists for batch in batches]


def _of_keys(rows: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
    both = pa.concat_batches([rows.select(keys.schema.names), keys])
    codes = group(both, keys.schema.names).index
    is_chosen = np.isin(codes[: rows.num_rows], codes[rows.num_rows :])
    return rows.filter(pa.array(is_chosen))
