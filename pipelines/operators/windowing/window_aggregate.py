"""Operators over tumbling or sliding windows: each emits aggregates or calls a function per window.

A window of a key is emitted when it is due; all windows that a watermark makes due are read and
emitted together. Aggregates keep one row per key and open window. Each batch is first reduced by
key and pane (rows that share all their windows), so that overlapping windows cost per key and not
per record. A function gets all rows of its window. Each row is kept once, by pane, until its
windows are over.

With an allowed lateness, a window stays for that long after it was due. Rows that arrive meanwhile
make it emit its complete result again, so that an upsert by key and window is right. Rows that
arrive after that are counted, and go to the side output `late`.

Source: Flink's `WindowOperator` with `EventTimeTrigger` or a `ProcessWindowFunction`; panes as in
its window table functions.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.operators.aggregating.aggregates import Aggregate, Values
from pipelines.operators.aggregating.aggregation import Aggregation, check_distinct
from pipelines.operators.columns import (
    Longs,
    by_value,
    group,
    in_slices,
    longs,
    single_batch,
    timestamps,
)
from pipelines.operators.operator import OperatorContext
from pipelines.operators.rows import row_list
from pipelines.operators.stateless import check_declared
from pipelines.operators.windowing.combining import lifted, windowed_aggregation
from pipelines.operators.windowing.windows import (
    BOUNDS,
    WINDOW_START,
    AlignedOperator,
    AlignedWindows,
    bounded_schema,
    in_order,
    with_bounds,
    with_window,
)
from pipelines.state.backend import Rows, StateBackend, TableDescriptor

_EMITTED = "__emitted"


class WindowAggregate(AlignedOperator):
    """Emits keys, `window_start`, aggregates; sorted by window, then by key.

    Takes rows, and batches of combined rows (`combining`). Windows that are not tumbling may
    overlap; then `window_end` and `window_time` follow.
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
        panes = self._in_panes(in_time, self._windows.panes(times))
        groups = group(panes, self._aggregation.key_names)
        reduced = self._aggregation.reduce(lifted(self._aggregation, panes), groups)
        keys, reduced = self._by_window(groups.keys, reduced)
        self._aggregation.fold(self._open_windows, keys, reduced)
        self._add_values(panes)
        self._on_folded(keys, reduced)

    def on_watermark(self, timestamp_ms: int) -> None:
        self._entry.time.advance(timestamp_ms)
        due = self._at_most(self._windows.newest_due(timestamp_ms))
        if len(due) == 0:
            return
        self._emit(due[~self._is_emitted(due)])
        closed = self._at_most(self._entry.newest_closed) if self._lateness_ms else due
        self._open_windows.delete(closed)
        self._forget(self._entry.newest_closed)

    def _in_panes(self, rows: pa.RecordBatch, starts: Longs) -> pa.RecordBatch:
        return with_window(rows, starts)

    def _add_values(self, panes: pa.RecordBatch) -> None:
        """Hook: rows of these panes have been added to their windows."""

    def _on_folded(self, keys: pa.RecordBatch, reduced: list[Values]) -> None:
        """Hook: these windows have got these accumulators."""
        if self._lateness_ms:
            self._emit_again(keys)

    def _forget(self, newest_start: int) -> None:
        """Hook: windows up to this one are closed."""

    def _by_window(
        self, panes: pa.RecordBatch, reduced: list[Values]
    ) -> tuple[pa.RecordBatch, list[Values]]:
        """Merges the contents of each pane into each open window that covers the pane."""
        if self._windows.is_tumbling:
            return panes, reduced
        keys, positions = self._in_open_windows(panes)
        groups = group(keys, self._aggregation.key_names)
        spread = [values[positions] for values in reduced]
        return groups.keys, self._aggregation.reduce(spread, groups)

    def _in_open_windows(self, panes: pa.RecordBatch) -> tuple[pa.RecordBatch, Longs]:
        """Returns each row once for each open window that covers its pane, and its old position."""
        positions, starts = self._windows.assign(longs(panes.column(WINDOW_START)))
        of_panes = panes.take(pa.array(positions))
        is_open = self._entry.is_open(starts, of_panes)
        positions, starts = positions[is_open], starts[is_open]
        in_windows = of_panes.filter(pa.array(is_open)).set_column(
            panes.schema.get_field_index(WINDOW_START),
            panes.schema.field(WINDOW_START),
            timestamps(starts),
        )
        return in_windows, positions

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
        return windowed_aggregation(self._keys, self._time_column, self._aggregates, schema)


def with_flag(descriptor: TableDescriptor, flag: str) -> TableDescriptor:
    """Returns the table with one more column, which is false until written."""
    return replace(
        descriptor,
        value=descriptor.value.append(pa.field(flag, pa.bool_())),
        defaults={**descriptor.defaults, flag: False},
    )


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """[start, end) in milliseconds since the epoch. Source: Flink's `TimeWindow`."""

    start_ms: int
    end_ms: int


WindowFunction = Callable[[TimeWindow, pa.RecordBatch], pa.RecordBatch]
"""A pure function from the rows of a key and window, in order of arrival, to any number of rows."""


@dataclass(frozen=True, slots=True)
class WindowCalls:
    """Makes one call per key and window: cheap for many rows, not for very many small windows."""

    function: WindowFunction
    schema: pa.Schema
    keys: tuple[str, ...]
    context: OperatorContext

    def on_rows(self, rows: pa.RecordBatch, starts: Longs, ends: Longs) -> None:
        """Takes rows with the window of each; calls the function by window, then by key."""
        if rows.num_rows == 0:
            return
        windowed = rows.select(list(self.keys))
        windowed = windowed.append_column("__start", pa.array(starts))
        windowed = windowed.append_column("__end", pa.array(ends))
        columns = ["__start", "__end", *self.keys]
        order = pc.sort_indices(windowed, sort_keys=[(name, "ascending") for name in columns])
        code = group(windowed, columns).index[order]
        self._call_for_runs(rows.take(order), code, starts[order], ends[order])

    def _call_for_runs(self, rows: pa.RecordBatch, code: Longs, starts: Longs, ends: Longs) -> None:
        begins = np.flatnonzero(np.append(True, code[1:] != code[:-1])).tolist()
        results = []
        for begin, end in zip(begins, [*begins[1:], len(code)], strict=True):
            window = TimeWindow(int(starts[begin]), int(ends[begin]))
            result = self.function(window, rows.slice(begin, end - begin))
            check_declared(self.context.uid, result.schema, self.schema)
            results.append(result)
        for piece in in_slices(pa.concat_batches(results)):
            self.context.collect(piece)


Panes = dict[int, list[pa.RecordBatch]]
"""The rows of each pane by its beginning, ascending."""


class PaneRows:
    """A state of an operator, named `name`: rows of `schema`, which includes event time."""

    def __init__(
        self,
        state: StateBackend,
        name: str,
        schema: pa.Schema,
        keys: tuple[str, ...],
        time_column: str,
    ) -> None:
        self.schema = schema
        self._rows = state.batch_list(row_list(name, schema, keys, time_column))

    def add(self, rows: pa.RecordBatch, panes: Longs) -> None:
        """Adds rows; `panes` gives the pane of each."""
        for pane, of_pane in by_value(rows, panes):
            self._rows.append(pane, of_pane)

    def held(self, newest: int) -> Longs:
        """Returns the panes up to `newest` that have rows, ascending."""
        return np.array(self._rows.namespaces_at_most(newest), np.int64)

    def take(self, newest: int) -> Panes:
        """Removes and returns the rows of the panes up to `newest`."""
        return {pane: self._rows.pop(pane) for pane in self._rows.namespaces_at_most(newest)}

    def take_rows(self, newest: int) -> pa.RecordBatch:
        """Like `take`, as one batch: by pane, then in order of arrival."""
        return self.joined(self.take(newest).values())

    def put_back(self, panes: Panes) -> None:
        for pane, batches in panes.items():
            for batch in batches:
                self._rows.append(pane, batch)

    def joined(self, lists: Iterable[list[pa.RecordBatch]]) -> pa.RecordBatch:
        batches = [batch for batches in lists for batch in batches]
        return single_batch(pa.Table.from_batches(batches, self.schema))


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
        """Calls again for keys that get rows in a window for which it was called before."""
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
        """Drops the keys for which the window was called before the restored cut."""
        called = self._windows.size_ms - 1 + start <= self._entry.time.restored_of(rows)
        return rows.filter(pa.array(np.broadcast_to(~called, rows.num_rows)))

    def _call(self, start: int, rows: pa.RecordBatch) -> None:
        starts = np.full(rows.num_rows, start, np.int64)
        self._calls.on_rows(rows, starts, starts + self._windows.size_ms)

    def _newest_due(self) -> int:
        return self._windows.newest_due(self._entry.time.watermark_ms)

    def _newest_pane(self) -> int:
        """Returns the newest pane that may belong to a window that is due."""
        return self._newest_due() + self._windows.size_ms - 1

    def _put_back(self, panes: Panes) -> None:
        """Puts back the panes that belong to a window that is not closed yet."""
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
