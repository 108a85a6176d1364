"""Functions of one row at a time: map, flat map, filter. The rows they emit are declared.

Convenient, but slower than functions of batches: see `process_function`. Source: Flink's
`MapFunction`, `FlatMapFunction` and `FilterFunction`.
"""

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.rows import Row, RowOutput, rows_of

RowMapping = Callable[[Row], Row]
RowFlatMapping = Callable[[Row], Iterable[Row]]
RowPredicate = Callable[[Row], bool]


class FlatMapRows(Operator):
    """Guarantee: the operators after it see only batches of `schema`, in input order."""

    def __init__(self, function: RowFlatMapping, schema: pa.Schema) -> None:
        self._function = function
        self._schema = schema
        self._row_in_work = -1

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return self._schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._output = RowOutput(context.uid, self._schema, context.collect)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        for number, row in enumerate(rows_of(batch)):
            self._row_in_work = number
            self._output.add(self._function(row))
        self._row_in_work = -1
        self._output.flush()

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return self._row_in_work


class MapRows(FlatMapRows):
    def __init__(self, function: RowMapping, schema: pa.Schema) -> None:
        super().__init__(lambda row: (function(row),), schema)


class FilterRows(Operator):
    """Keeps the rows for which the function returns a true value."""

    def __init__(self, predicate: RowPredicate) -> None:
        self._predicate = predicate
        self._row_in_work = -1

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        is_kept = np.zeros(batch.num_rows, np.bool_)
        for number, row in enumerate(rows_of(batch)):
            self._row_in_work = number
            is_kept[number] = bool(self._predicate(row))
        self._row_in_work = -1
        kept = batch.filter(pa.array(is_kept))
        if kept.num_rows:
            if self.context.lineage is not None:
                self.context.lineage.descend_from(np.flatnonzero(is_kept))
            self.context.collect(kept)

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return self._row_in_work
