"""Finds distinct values: in each batch, to send fewer rows, and among all rows of a key.

`DistinctOfBatch` works before the exchange. `MarkFirstValues` works behind it and marks each value
that its key has not had before, so that a count of distinct values counts the marks.

Source: Flink SQL's `SELECT DISTINCT` and `COUNT(DISTINCT ...)`, whose views of distinct values are
state by value as well.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregating.count_distinct import mark_of
from pipelines.operators.columns import field_of, group
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.ranking.deduplicate import firsts
from pipelines.state.backend import NO_ROW, Table, TableDescriptor
from pipelines.state.descriptors import StateDescriptor, check_table


class DistinctOfBatch(Operator):
    """Keeps no state; fewer rows travel."""

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
    """Adds to each row, for each counted column, whether its key meets that value for the first
    time; a null is no value. Keeps every value of each key."""

    def __init__(self, keys: tuple[str, ...], columns: tuple[str, ...]) -> None:
        self._keys = keys
        self._columns = columns

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        schema = inputs[0]
        for column in self._columns:
            check_table(self._descriptor(column, inputs[0]))
            if mark_of(column) in schema.names:
                raise Rejected(f"The input has a column {mark_of(column)!r}; rename it.")
            schema = schema.append(pa.field(mark_of(column), pa.bool_()))
        return schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._seen = {
            column: context.state.table(self._descriptor(column, inputs[0]))
            for column in self._columns
        }

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        marked = batch
        for column, seen in self._seen.items():
            field = pa.field(mark_of(column), pa.bool_())
            marked = marked.append_column(field, self._marks(batch, column, seen))
        if self.context.lineage is not None:
            self.context.lineage.descend_from(np.arange(batch.num_rows))
        self.context.collect(marked)

    def _marks(self, batch: pa.RecordBatch, column: str, seen: Table) -> pa.Array:
        marks = np.zeros(batch.num_rows, np.bool_)
        has_value = pc.is_valid(batch.column(column))
        positions = np.flatnonzero(has_value.to_numpy(zero_copy_only=False))
        groups = group(batch.filter(has_value), [*self._keys, column])
        is_new = seen.find(groups.keys) == NO_ROW
        seen.rows_for(groups.keys.filter(pa.array(is_new)))
        marks[positions[firsts(groups.index, groups.count)[is_new]]] = True
        return pa.array(marks)

    def _descriptor(self, column: str, schema: pa.Schema) -> TableDescriptor:
        key = pa.schema([field_of(schema, each) for each in (*self._keys, column)])
        return TableDescriptor(StateDescriptor(column).name, key, pa.schema([]), {}, self._keys)
