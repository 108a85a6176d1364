"""Calls a function with all rows of each key and tumbling or sliding window, when it is due.

State: the rows themselves, once each, by pane (rows that share all their windows). With an allowed
lateness, rows that come after their window was due cause another call with all of its rows.

Source: Flink's `WindowOperator` with a `ProcessWindowFunction`.
"""

import numpy as np
import pyarrow as pa

from pipelines.operators.aligned_operator import AlignedOperator
from pipelines.operators.columns import Longs, by_value
from pipelines.operators.grouping import group
from pipelines.operators.operator import OperatorContext
from pipelines.operators.pane_rows import PaneRows, Panes
from pipelines.operators.window_function import WindowCalls, WindowFunction
from pipelines.operators.windows import AlignedWindows


class WindowRows(AlignedOperator):
    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: AlignedWindows,
        function: WindowFunction,
        schema: pa.Schema,
        lateness_ms: int = 0,
    ) -> None:
        super().__init__(keys, time_column, windows, lateness_ms)
        self._function = function
        self._schema = schema

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        self._check_input(inputs[0])
        return self._schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._rows = PaneRows(context.state, "rows", inputs[0], self._keys, self._time_column)
        self._calls = WindowCalls(self._function, self._schema, self._keys, context)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        in_time, times = self._entry.admit(batch)
        self._rows.add(in_time, self._windows.panes(times))
        if self._lateness_ms and in_time.num_rows:
            self._call_again(in_time, times)

    def on_watermark(self, timestamp_ms: int) -> None:
        called = self._newest_due()
        self._entry.time.advance(timestamp_ms)
        _, starts = self._windows.assign(self._rows.held(self._newest_pane()))
        is_due = (starts > called) & (starts <= self._newest_due())
        is_closed = starts <= self._entry.newest_closed
        if is_due.any() or is_closed.any():
            self._call_for(np.unique(starts[is_due]).tolist())

    def _call_again(self, in_time: pa.RecordBatch, times: Longs) -> None:
        """Calls again for the keys to which these rows add in a window that was called before."""
        positions, starts = self._windows.assign(times)
        of_windows = in_time.take(pa.array(positions))
        is_due = self._entry.is_due(starts, of_windows) & self._entry.is_open(starts, of_windows)
        if not is_due.any():
            return
        panes = self._rows.take(int(starts[is_due].max()) + self._windows.size_ms)
        touched = of_windows.select(list(self._keys)).filter(pa.array(is_due))
        for start, keys in by_value(touched, starts[is_due]):
            self._call(start, _of_keys(self._of_window(panes, start), keys))
        self._put_back(panes)

    def _call_for(self, windows: list[int]) -> None:
        panes = self._rows.take(self._newest_pane())
        for start in windows:
            self._call(start, self._not_called(start, self._of_window(panes, start)))
        self._put_back(panes)

    def _not_called(self, start: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Drops the keys for which the window had been called before the restored cut."""
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

    def _put_back(self, panes: Panes) -> None:
        """Keeps the panes that belong to a window that is not closed yet."""
        newest = self._windows.newest_starts(np.array(list(panes), np.int64)).tolist()
        is_open = [newest_start > self._entry.newest_closed for newest_start in newest]
        held = zip(panes.items(), is_open, strict=True)
        self._rows.put_back({pane: batches for (pane, batches), stays in held if stays})

    def _of_window(self, panes: Panes, start: int) -> pa.RecordBatch:
        within = range(start, start + self._windows.size_ms)
        return self._rows.joined(batches for p, batches in panes.items() if p in within)


def _of_keys(rows: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
    both = pa.concat_batches([rows.select(keys.schema.names), keys])
    codes = group(both, keys.schema.names).index
    is_chosen = np.isin(codes[: rows.num_rows], codes[rows.num_rows :])
    return rows.filter(pa.array(is_chosen))
