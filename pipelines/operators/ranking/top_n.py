"""The first rows of each key in an order, as a changelog; or the best row alone, as updates.

A row that enters the first `n` is added, and the row that it displaces is taken back. With a rank
column, a row that moves to another rank is taken back and added again. One batch makes at most one
change per key and rank. The best row (`min_by`, `max_by`) is emitted when it is a new one, like a
running total: the newest row of a key is the result, and nothing is taken back.

Source: Flink SQL's Top-N (`ROW_NUMBER() ... <= n`); `KeyedStream.minBy` and `maxBy`.
"""

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.changelog import (
    DELETE,
    INSERT,
    changes,
    refuse_changelogs,
    with_row_kind,
)
from pipelines.operators.columns import Longs, in_slices
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.ranking.ranked_rows import Order, RankedRows, ranked_table

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
    """Guarantee: at any time, added less retracted rows are the first `n` rows of each key."""

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

    def _emit(self, rows: pa.RecordBatch, ranks: Longs, is_new: Longs, row_kind: str) -> None:
        if self._rank_column is None:
            rows = rows.filter(pa.array(is_new))
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
    """The rows with their ranks, which people count from 1."""
    return rows.append_column(pa.field(column, pa.int64()), pa.array(ranks + np.int64(1)))
