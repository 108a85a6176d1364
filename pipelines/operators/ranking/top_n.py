"""The first rows in an order, of each key or of each key and window, and the best row of each key.

The first rows of each key are a changelog: a row that enters the first `n` is added, and the row
that it displaces is taken back. With a rank column, a row that moves to another rank is taken back
and added again. One batch makes at most one change per key and rank. The best row (`min_by`,
`max_by`) is emitted when it is a new one, like a running total: the newest row of a key is the
result, and nothing is taken back.

The first rows of each key and window are emitted once, when the window ends. Only those rows are
kept, so the state of a window does not grow with its rows. In sessions, which may still merge, all
rows are kept until the session is over.

Source: Flink SQL's Top-N (`ROW_NUMBER() ... <= n`) and Window Top-N; `KeyedStream.minBy` and
`maxBy`.
"""

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregating.aggregation import check_distinct
from pipelines.operators.changelog import (
    DELETE,
    INSERT,
    changes,
    refuse_changelogs,
    with_row_kind,
)
from pipelines.operators.columns import Flags, Longs, in_slices, longs, rows_with, timestamps
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.ranking.ranked_rows import RANK, Order, RankedRows, ranked_table
from pipelines.operators.windowing.sessions import SessionRows
from pipelines.operators.windowing.window_aggregate import TimeWindow
from pipelines.operators.windowing.windows import (
    BOUNDS,
    WINDOW_START,
    AlignedOperator,
    AlignedWindows,
    SessionWindows,
    bounded_schema,
    in_order,
    with_window,
)
from pipelines.state.backend import Rows

STATE = "rows"


class RankedOperator(Operator):
    """Keeps the first `n` rows of each key; subclasses decide what is emitted."""

    has_ranks = True

    def __init__(self, keys: tuple[str, ...], order: Order, n: int) -> None:
        self._keys = keys
        self._order = order
        self._n = n

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        check_n(self._n)
        self._order.check(inputs[0], self._keys)
        ranked_table(STATE, inputs[0], self._keys, self._keys, has_ranks=self.has_ranks)
        return inputs[0]

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        schema = inputs[0]
        table = ranked_table(STATE, schema, self._keys, self._keys, has_ranks=self.has_ranks)
        self._ranked = RankedRows(context.state, table, schema, self._order, self._n)


class TopN(RankedOperator):
    """Guarantee: at any time, added minus retracted rows are the first `n` rows of each key."""

    def __init__(
        self, keys: tuple[str, ...], order: Order, n: int, rank_column: str | None = None
    ) -> None:
        super().__init__(keys, order, n)
        self._rank_column = rank_column

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        schema = with_rank_column(super().output_schema(inputs), self._rank_column)
        return with_row_kind(schema, "The input")

    def emits_changes(self, inputs: list[bool]) -> bool:
        refuse_changelogs(inputs)
        return True

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._schema = self.output_schema(inputs)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Takes rows back before it adds any."""
        changed = self._ranked.add(batch)
        if changed is None:
            return
        self._emit(changed.taken, changed.taken_ranks, changed.left, DELETE)
        self._emit(changed.put, changed.put_ranks, changed.entered, INSERT)

    def _emit(self, rows: pa.RecordBatch, ranks: Longs, is_new: Flags, row_kind: str) -> None:
        if self._rank_column is None:
            rows = rows_with(rows, is_new)
        else:
            rows = ranked(rows, ranks, self._rank_column)
        for piece in in_slices(changes(rows, row_kind, self._schema)):
            self.context.collect(piece)


class BestRow(RankedOperator):
    """Emits a row of the input when it is better than all earlier ones of its key."""

    has_ranks = False

    def __init__(self, keys: tuple[str, ...], order: Order) -> None:
        super().__init__(keys, order, 1)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        changed = self._ranked.add(batch)
        if changed is not None:
            self.context.collect(changed.put)


def check_n(n: int) -> None:
    if n < 1:
        raise Rejected(f"The first {n} rows cannot be; give a number of at least 1.")


def with_rank_column(schema: pa.Schema, column: str | None) -> pa.Schema:
    """Raises Rejected if the input has that column."""
    if column is None:
        return schema
    if column in schema.names:
        raise Rejected(f"The input has a column {column!r}; choose another name for the rank.")
    return schema.append(pa.field(column, pa.int64()))


def ranked(rows: pa.RecordBatch, ranks: Longs, column: str) -> pa.RecordBatch:
    """Returns the rows with their ranks, counted from 1 as people do."""
    return rows.append_column(pa.field(column, pa.int64()), pa.array(ranks + np.int64(1)))


class WindowTopN(AlignedOperator):
    """Emits keys, the window, the other columns, and the rank; sorted by window, key and rank."""

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
    """Emits keys, the session, the other columns, and the rank; sorted by session, key and rank."""

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
