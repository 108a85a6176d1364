"""Reduces the rows of each key to one by a function of two rows, and emits it after every record.

The function is called once per record, with Python dictionaries, so an aggregate is much faster
where there is one. State is read and written once per key and batch.

Source: Flink's `KeyedStream.reduce`.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import group
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.ranking.ranked_rows import ranked_table
from pipelines.operators.rows import Row, RowOutput, rows_of
from pipelines.state.backend import NO_ROW

ReduceFunction = Callable[[Row, Row], Row]
"""Takes what the earlier rows of a key were reduced to, and the next row; both have the columns of
the input, and so has the result. The first row of a key is its own result."""

_STATE = "reduced"


class Reduce(Operator):
    """Guarantee: emits, for each record, what the rows of its key so far are reduced to."""

    def __init__(self, keys: tuple[str, ...], function: ReduceFunction) -> None:
        self._keys = keys
        self._function = function
        self._row_in_work = -1

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        ranked_table(_STATE, inputs[0], self._keys, self._keys, has_ranks=False)
        return inputs[0]

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._schema = inputs[0]
        self._reduced = context.state.table(
            ranked_table(_STATE, self._schema, self._keys, self._keys, has_ranks=False)
        )
        self._output = RowOutput(context.uid, self._schema, context.collect)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        groups = group(batch, list(self._keys))
        reduced = self._held(groups.keys)
        for number, row in enumerate(rows_of(batch)):
            self._row_in_work = number
            of_key = int(groups.index[number])
            if of_key in reduced:
                row = self._call(reduced[of_key], row)
            reduced[of_key] = row
            self._output.add([row])
        self._row_in_work = -1
        self._keep(groups.keys, [reduced[of_key] for of_key in range(groups.count)])
        self._output.flush()

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return self._row_in_work

    def _call(self, before: Row, row: Row) -> Row:
        keys = [row[key] for key in self._keys]
        result = self._function(before, row)
        if [result.get(key) for key in self._keys] != keys:
            raise Rejected(
                f"The function of {self.context.uid!r} changed the key from {keys} to"
                f" {[result.get(key) for key in self._keys]}; a reduced row keeps its key."
            )
        return result

    def _held(self, keys: pa.RecordBatch) -> dict[int, Row]:
        """The reduced row of each key that has one, by the key's position."""
        rows = self._reduced.find(keys)
        known = np.flatnonzero(rows != NO_ROW)
        held = self._reduced.keys(rows[known])
        columns = [
            held.column(name) if name in self._keys else self._reduced.read_arrow(name, rows[known])
            for name in self._schema.names
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return dict(zip(known.tolist(), rows_of(batch), strict=True))

    def _keep(self, keys: pa.RecordBatch, reduced: list[Row]) -> None:
        pieces: list[pa.RecordBatch] = []
        written = RowOutput(self.context.uid, self._schema, pieces.append)
        written.add(reduced)
        written.flush()
        rows = self._reduced.rows_for(keys)
        kept = pa.concat_batches(pieces)
        for name in self._schema.names:
            if name not in self._keys:
                self._reduced.write_arrow(name, rows, kept.column(name))
