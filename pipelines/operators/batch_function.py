"""Runs an author's function from a batch to a batch, and checks the schema that it promised.

Finds the row on which an author's function fails, after it has failed on the batch.

Halves the batch. A batch of 65,536 rows costs 17 calls on at most twice its rows; that happens
once, in an attempt that is over anyway.
"""

from collections.abc import Callable

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.operators.operator import Operator, OperatorContext


def first_failing_row(function: Callable[[pa.RecordBatch], object], batch: pa.RecordBatch) -> int:
    """A row that fails by itself; -1: no row does, so the failure is not that of one row."""
    low, high = 0, batch.num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if _fails(function, batch.slice(low, middle - low)):
            high = middle
        else:
            low = middle
    return low if _fails(function, batch.slice(low, 1)) else -1


def _fails(function: Callable[[pa.RecordBatch], object], rows: pa.RecordBatch) -> bool:
    try:
        function(rows)
    except Exception:  # an author's function may raise anything
        return True
    return False


BatchMapping = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Arrow in, Arrow out. Pure: after a recovery it sees records again."""


class BatchFunction(Operator):
    """Guarantee: the operators after it see only batches of `schema`."""

    def __init__(self, function: BatchMapping, schema: pa.Schema) -> None:
        self._function = function
        self._schema = schema

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        """Does not try the function: it may not cope with a batch without rows."""
        return self._schema

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        mapped = self._function(batch)
        check_declared(self.context.uid, mapped.schema, self._schema)
        if mapped.num_rows:
            self.context.collect(mapped)

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return first_failing_row(self._function, batch)


class ConnectedFunctions(Operator):
    """One function per input, both with the same schema. Source: Flink's `CoMapFunction`."""

    def __init__(self, first: BatchMapping, second: BatchMapping, schema: pa.Schema) -> None:
        self._schema = schema
        self._by_port = (BatchFunction(first, schema), BatchFunction(second, schema))

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return self._schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        for function in self._by_port:
            function.open(context, inputs)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._by_port[port].on_batch(port, batch)


def check_declared(uid: Uid, returned: pa.Schema, declared: pa.Schema) -> None:
    """Raises Rejected if an author's function did not keep its promise."""
    if not returned.equals(declared):
        raise Rejected(
            f"The function of {uid!r} returned columns ({_columns(returned)})"
            f" where it declared ({_columns(declared)})."
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
