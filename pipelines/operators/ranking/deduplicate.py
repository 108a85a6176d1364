"""One row of each key: the first that came, or the first or last in an order.

The first row in order of arrival never changes, so the operator only adds rows and keeps no more
than the keys. With a time-to-live it forgets a key that long after it emitted the row; the next row
of the key is then a first one again. If there was no time-to-live before, keys begin to age when it
first applies. Any other choice is a changelog: a later row may displace an earlier one, which is
then taken back. A time-to-live is refused there, because a row whose key was forgotten could not be
taken back.

Source: Flink SQL's deduplication (`RowTimeDeduplicateFunction`, `ProcTimeDeduplicateKeepFirstRow`).
"""

import numpy as np
import pyarrow as pa

from pipelines.operators.columns import Longs, field_of, group
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.ranking.ranked_rows import Order
from pipelines.operators.ranking.top_n import TopN
from pipelines.state.backend import NO_ROW, Rows, ScanPosition, TableDescriptor
from pipelines.state.descriptors import check_table
from pipelines.state.entries import (
    CLEANED_PER_BATCH,
    NOT_YET_UPDATED_MS,
    UPDATED_COLUMN,
    StateTtlConfig,
)

_STATE = "keys"


class KeepFirst(Operator):
    """Guarantee: emits one row of each key, the first to arrive; again after the time-to-live."""

    def __init__(self, keys: tuple[str, ...], ttl: StateTtlConfig | None = None) -> None:
        self._keys = keys
        self._ttl = ttl
        self._scanned: ScanPosition | None = None

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        check_table(self._descriptor(inputs[0]))
        return inputs[0]

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._seen = context.state.table(self._descriptor(inputs[0]))

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        groups = group(batch, list(self._keys))
        is_new = self._is_new(self._seen.find(groups.keys))
        if is_new.any():
            self._note(self._seen.rows_for(groups.keys.filter(pa.array(is_new))))
            self._emit(batch, np.sort(firsts(groups.index, groups.count)[is_new]))
        self._remove_expired()

    def _is_new(self, rows: Rows) -> Rows:
        is_new = rows == NO_ROW
        if self._ttl is not None:
            is_new[~is_new] = self._expired(rows[~is_new])
        return np.asarray(is_new)

    def _emit(self, batch: pa.RecordBatch, chosen: Longs) -> None:
        if self.context.lineage is not None:
            self.context.lineage.descend_from(chosen)
        self.context.collect(batch.take(pa.array(chosen)))

    def _note(self, rows: Rows) -> None:
        if self._ttl is not None:
            now_ms = np.full(len(rows), self.context.now_ms(), np.int64)
            self._seen.write(UPDATED_COLUMN, rows, now_ms)

    def _remove_expired(self) -> None:
        if self._ttl is not None:
            rows, self._scanned = self._seen.scan(self._scanned, CLEANED_PER_BATCH)
            noted_ms = self._seen.read(UPDATED_COLUMN, rows)
            self._note(rows[noted_ms == NOT_YET_UPDATED_MS])
            self._seen.delete(rows[self._expired(rows)])

    def _expired(self, rows: Rows) -> Rows:
        if self._ttl is None:
            return np.zeros(len(rows), np.bool_)
        noted_ms = self._seen.read(UPDATED_COLUMN, rows).astype(np.int64, copy=False)
        return np.asarray(self._ttl.has_expired(noted_ms, self.context.now_ms()))

    def _descriptor(self, schema: pa.Schema) -> TableDescriptor:
        key = pa.schema([field_of(schema, each) for each in self._keys])
        noted = {} if self._ttl is None else {UPDATED_COLUMN: NOT_YET_UPDATED_MS}
        value = pa.schema([(name, pa.int64()) for name in noted])
        return TableDescriptor(_STATE, key, value, noted, self._keys)


class KeepBest(TopN):
    """Guarantee: added less retracted rows are the one chosen row of each key so far."""

    has_ranks = False

    def __init__(self, keys: tuple[str, ...], order: Order) -> None:
        super().__init__(keys, order, 1)


def firsts(index: Longs, count: int) -> Longs:
    """The position of the first member of each group."""
    first = np.empty(count, np.int64)
    first[index[::-1]] = np.arange(len(index))[::-1]
    return first
