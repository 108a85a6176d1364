"""The first rows of each key and window in an order, emitted once, when the window ends.

Only those rows are kept, so the state of a window does not grow with its rows. In sessions, which
may still merge, all rows are kept until the session is over.

Source: Flink SQL's Window Top-N.
"""

import numpy as np
import pyarrow as pa

from pipelines.operators.aggregating.aggregation import check_distinct
from pipelines.operators.columns import Longs, in_slices, longs, timestamps
from pipelines.operators.operator import OperatorContext
from pipelines.operators.ranking.ranked_rows import RANK, Order, RankedRows, ranked_table
from pipelines.operators.ranking.top_n import STATE, check_n, with_rank_column
from pipelines.operators.windowing.lateness import AlignedOperator
from pipelines.operators.windowing.session_operator import SessionRows
from pipelines.operators.windowing.window_aggregate import TimeWindow
from pipelines.operators.windowing.windows import (
    BOUNDS,
    WINDOW_START,
    AlignedWindows,
    SessionWindows,
    bounded_schema,
    in_order,
    with_window,
)
from pipelines.state.backend import Rows


class WindowTopN(AlignedOperator):
    """Emits keys, the window, the other columns, and the rank; by window, key and rank."""

    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: AlignedWindows,
        order: Order,
        n: int,
        rank_column: str | None = None,
    ) -> None:
        super().__init__(keys, time_column, windows, lateness_ms=0)
        self._order = order
        self._n = n
        self._rank_column = rank_column

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        self._check_input(inputs[0])
        check_n(self._n)
        windowed = self._windowed(inputs[0])
        self._order.check(windowed, self._window_keys)
        ranked_table(STATE, windowed, self._window_keys, self._keys, has_ranks=True)
        others = [name for name in windowed.names if name not in self._window_keys]
        fields = [windowed.field(name) for name in (*self._keys, *others)]
        if self._windows.is_tumbling:
            fields.insert(len(self._keys), windowed.field(WINDOW_START))
            return with_rank_column(pa.schema(fields), self._rank_column)
        check_distinct([*self._keys, *BOUNDS, *others])
        bounded = bounded_schema(pa.schema(fields), len(self._keys))
        return with_rank_column(bounded, self._rank_column)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._schema = self.output_schema(inputs)
        windowed = self._windowed(inputs[0])
        table = ranked_table(STATE, windowed, self._window_keys, self._keys, has_ranks=True)
        self._ranked = RankedRows(context.state, table, windowed, self._order, self._n)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        rows, starts = self._entry.admit_to_windows(batch)
        if rows.num_rows:
            self._ranked.add(with_window(rows, starts))

    def on_watermark(self, timestamp_ms: int) -> None:
        self._entry.time.advance(timestamp_ms)
        table = self._ranked.table
        due = table.select_at_most(WINDOW_START, self._windows.newest_due(timestamp_ms))
        if len(due):
            self._emit(due)
            table.delete(due)

    @property
    def _window_keys(self) -> tuple[str, ...]:
        return (*self._keys, WINDOW_START)

    def _windowed(self, schema: pa.Schema) -> pa.Schema:
        return with_window(pa.RecordBatch.from_pylist([], schema=schema), _NO_STARTS).schema

    def _emit(self, due: Rows) -> None:
        ranks = self._ranked.table.keys(due).column(RANK)
        rows = self._ranked.rows(due).append_column(pa.field(RANK, ranks.type), ranks)
        for piece in in_slices(in_order(rows, (WINDOW_START, *self._keys, RANK))):
            starts = longs(piece.column(WINDOW_START))
            columns = {name: piece.column(name) for name in piece.schema.names}
            columns |= bounds(starts, starts + self._windows.size_ms)
            if self._rank_column is not None:
                columns[self._rank_column] = pa.array(longs(piece.column(RANK)) + 1)
            arrays = [columns[name] for name in self._schema.names]
            self.context.collect(pa.RecordBatch.from_arrays(arrays, schema=self._schema))


class SessionTopN(SessionRows):
    """Emits keys, the session, the other columns, and the rank; by session, key and rank."""

    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: SessionWindows,
        order: Order,
        n: int,
        rank_column: str | None = None,
    ) -> None:
        super().__init__(keys, time_column, windows, self._first_rows, pa.schema([]))
        self._order = order
        self._n = n
        self._rank_column = rank_column

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        schema = inputs[0]
        self._check_input(schema)
        check_n(self._n)
        self._order.check(schema, self._keys)
        others = [name for name in schema.names if name not in self._keys]
        check_distinct([*self._keys, *BOUNDS, *others])
        fields = pa.schema([schema.field(name) for name in (*self._keys, *others)])
        return with_rank_column(bounded_schema(fields, len(self._keys)), self._rank_column)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        self._schema = self.output_schema(inputs)
        super().open(context, inputs)

    def _first_rows(self, window: TimeWindow, rows: pa.RecordBatch) -> pa.RecordBatch:
        codes = self._order.of(rows)
        chosen = rows.take(pa.array(np.lexsort((np.arange(len(codes)), codes))[: self._n]))
        count = chosen.num_rows
        columns = {name: chosen.column(name) for name in chosen.schema.names}
        starts, ends = np.full(count, window.start_ms), np.full(count, window.end_ms)
        columns |= bounds(starts, ends)
        if self._rank_column is not None:
            columns[self._rank_column] = pa.array(np.arange(1, count + 1))
        arrays = [columns[name] for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def bounds(starts: Longs, ends: Longs) -> dict[str, pa.Array]:
    return dict(zip(BOUNDS, map(timestamps, (starts, ends, ends - 1)), strict=True))


_NO_STARTS: Longs = np.empty(0, np.int64)
