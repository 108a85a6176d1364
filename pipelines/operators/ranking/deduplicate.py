"""One row of each key: the first to arrive, or the first or last in an order.

The first row in order of arrival never changes, so the operator only adds rows and keeps only the
keys. With a time-to-live it forgets a key that long after it emitted the row; the next row of the
key is then a first one again. If there was no time-to-live before, keys begin to age when it first
applies. Any other choice is a changelog: a later row may displace an earlier one, which is then
taken back. It cannot have a time-to-live, because a row whose key was forgotten could not be taken
back.

Source: Flink SQL's deduplication (`RowTimeDeduplicateFunction`, `ProcTimeDeduplicateKeepFirstRow`).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregating.aggregates import (
    CountDistinct,
    check_condition,
    holds,
    mark_of,
)
from pipelines.operators.columns import Groups, Longs, field_of, group, paired
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.ranking.ranked_rows import Order
from pipelines.operators.ranking.top_n import TopN
from pipelines.state.backend import NO_ROW, Rows, ScanPosition, TableDescriptor
from pipelines.state.descriptors import StateDescriptor, check_table
from pipelines.state.entries import (
    CLEANED_PER_BATCH,
    NOT_YET_UPDATED_MS,
    UPDATED_COLUMN,
    StateTtlConfig,
)
from pipelines.state.hashing import Hashes

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
    """Guarantee: the added rows minus the retracted ones are the chosen row of each key so far."""

    has_ranks = False

    def __init__(self, keys: tuple[str, ...], order: Order) -> None:
        super().__init__(keys, order, 1)


def firsts(index: Longs, count: int) -> Longs:
    """Returns the position of the first member of each group."""
    first = np.empty(count, np.int64)
    first[index[::-1]] = np.arange(len(index))[::-1]
    return first


class DistinctOfBatch(Operator):
    """Drops repeated rows within a batch, so that fewer rows travel. Keeps no state."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return pa.schema([field_of(inputs[0], column) for column in self._columns])

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        groups = group(batch, list(self._columns))
        chosen = firsts(groups.index, groups.count)
        if self.context.lineage is not None:
            self.context.lineage.descend_from(chosen)
        self.context.collect(batch.select(list(self._columns)).take(pa.array(chosen)))


class MarkFirstValues(Operator):
    """Adds a mark to each row for each count: True if the row brings a new value to its key.

    Rows that do not meet the condition of the count bring no value, and a null is no value. Keeps
    every value of each key.
    """

    def __init__(self, keys: tuple[str, ...], counts: Sequence[CountDistinct]) -> None:
        self._keys = keys
        self._counts: dict[str, dict[str, str | None]] = {}  # column -> mark -> condition
        for count in counts:
            self._counts.setdefault(count.column, {})[count.mark] = count.where

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        schema = inputs[0]
        for column, conditions in self._counts.items():
            check_table(self._descriptor(column, inputs[0]))
            for mark, condition in conditions.items():
                check_condition(inputs[0], condition)
                if mark in schema.names:
                    raise Rejected(f"The input has a column {mark!r}; rename it.")
                schema = schema.append(pa.field(mark, pa.bool_()))
        return schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._seen = {
            column: context.state.table(self._descriptor(column, inputs[0]))
            for column in self._counts
        }

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        marked = batch
        keys = group(batch, list(self._keys))
        hashes = next(iter(self._seen.values())).group_hashes(keys.keys)
        for column in self._counts:
            for mark, rows in self._firsts(batch, column, keys, hashes):
                is_first = np.zeros(batch.num_rows, np.bool_)
                is_first[rows] = True
                marked = marked.append_column(pa.field(mark, pa.bool_()), pa.array(is_first))
        if self.context.lineage is not None:
            self.context.lineage.descend_from(np.arange(batch.num_rows))
        self.context.collect(marked)

    def _firsts(
        self, batch: pa.RecordBatch, column: str, keys: Groups, hashes: Hashes
    ) -> Iterator[tuple[str, Longs]]:
        """Yields each mark of the column, with the rows that have it.

        `hashes` are those of the keys, which are grouped and hashed once for all columns.
        """
        conditions, seen = self._counts[column], self._seen[column]
        has_value = pc.is_valid(batch.column(column)).to_numpy(zero_copy_only=False)
        counts = {mark: has_value & holds(batch, each) for mark, each in conditions.items()}
        positions = np.flatnonzero(np.logical_or.reduce(list(counts.values())))
        of_rows = keys.index[positions]
        values = batch.column(column).take(pa.array(positions))
        pair_of_rows = paired(of_rows, values)
        pair_count = int(pair_of_rows.max(initial=-1)) + 1
        first = firsts(pair_of_rows, pair_count)
        of_first = of_rows[first]
        columns = [*keys.keys.take(pa.array(of_first)).columns, values.take(pa.array(first))]
        pairs = pa.RecordBatch.from_arrays(columns, names=[*self._keys, column])
        rows, is_new = seen.enter(pairs, hashes[of_first])
        if not self._has_conditions(column):
            yield mark_of(column), positions[first[is_new]]
            return
        for mark, is_counted in counts.items():
            is_unseen = ~seen.read(mark, rows).astype(np.bool_, copy=False)
            candidates = np.flatnonzero(is_counted[positions] & is_unseen[pair_of_rows])
            first_met = np.full(pair_count, -1)
            first_met[pair_of_rows[candidates[::-1]]] = candidates[::-1]
            met = np.flatnonzero(first_met >= 0)
            seen.write(mark, rows[met], np.ones(len(met), np.bool_))
            yield mark, positions[first_met[met]]

    def _has_conditions(self, column: str) -> bool:
        return any(each is not None for each in self._counts[column].values())

    def _descriptor(self, column: str, schema: pa.Schema) -> TableDescriptor:
        """With conditions, a value also has a flag for each count that has met it."""
        key = pa.schema([field_of(schema, each) for each in (*self._keys, column)])
        name = StateDescriptor(column).name
        if not self._has_conditions(column):
            return TableDescriptor(name, key, pa.schema([]), {}, self._keys)
        flags = pa.schema([(mark, pa.bool_()) for mark in self._counts[column]])
        return TableDescriptor(
            f"{name}.where", key, flags, dict.fromkeys(flags.names, False), self._keys
        )
