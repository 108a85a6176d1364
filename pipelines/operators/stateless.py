"""Stateless functions of one row (map, flat map, filter) or of a batch, with declared output.

Functions of one row are convenient, but slower than functions of batches. A batch that a function
of batches returns must have the schema that it promised. If a function fails on a batch, the row at
fault is found by halving the batch: one of 65,536 rows costs 17 calls on at most twice its rows,
once, in an attempt that is over anyway. A filter counts null as false, as in SQL.

Functions of pandas DataFrames are functions of batches too. The engine imports pandas only when
such a function is added to a pipeline.

Source: Flink's `MapFunction`, `FlatMapFunction` and `FilterFunction`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import range_of
from pipelines.operators.changelog import pass_changes_on
from pipelines.operators.columns import field_of
from pipelines.operators.operator import Operator, OperatorContext, SideOutput
from pipelines.operators.rows import Row, RowOutput, rows_of
from pipelines.operators.side_outputs import BatchSides, RowSides
from pipelines.state.hashing import key_groups, key_hashes

if TYPE_CHECKING:
    import pandas as pd


def first_failing_row(function: Callable[[pa.RecordBatch], object], batch: pa.RecordBatch) -> int:
    """Returns a row that fails by itself, or -1 if no single row causes the failure."""
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
"""Arrow in, Arrow out. It must be pure, because after a recovery it sees records again."""

BatchMappingWithSides = Callable[[pa.RecordBatch, BatchSides], pa.RecordBatch]


class BatchFunction(Operator):
    """Guarantee: the operators after it see only batches of `schema`."""

    passes_updates = True

    def __init__(self, function: BatchMapping, schema: pa.Schema) -> None:
        self._function = function
        self._schema = schema

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        """Does not try the function, which may not cope with a batch without rows."""
        return self._schema

    def emits_changes(self, inputs: list[bool]) -> bool:
        return pass_changes_on(inputs, self._schema)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        mapped = self._function(batch)
        check_declared(self.context.uid, mapped.schema, self._schema)
        if mapped.num_rows:
            self.context.collect(mapped)

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return first_failing_row(self._function, batch)


class BatchFunctionWithSides(BatchFunction):
    """A `BatchFunction` whose function also gets the side outputs."""

    def __init__(
        self, function: BatchMappingWithSides, schema: pa.Schema, sides: Mapping[str, SideOutput]
    ) -> None:
        super().__init__(self._called, schema)
        self._with_sides = function
        self._declared = dict(sides)

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return self._declared

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._sides = BatchSides(context.uid, self._declared, context.collect_side)

    def failing_row(self, batch: pa.RecordBatch) -> int:
        """Emits nothing while it looks for the row."""
        self._sides = BatchSides(self.context.uid, self._declared, lambda name, rows: None)
        return super().failing_row(batch)

    def _called(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._with_sides(batch, self._sides)


class ConnectedFunctions(Operator):
    """One function per input, both with the same output schema. Source: Flink's `CoMapFunction`."""

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
    """Raises Rejected if an author's function did not return the columns that it declared."""
    if not returned.equals(declared):
        raise Rejected(
            f"The function of {uid!r} returned columns ({_columns(returned)})"
            f" where it declared ({_columns(declared)})."
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


RowMapping = Callable[[Row], Row]
RowFlatMapping = Callable[[Row], Iterable[Row]]
RowFlatMappingWithSides = Callable[[Row, RowSides], Iterable[Row]]
RowPredicate = Callable[[Row], bool]


class FlatMapRows(Operator):
    """Guarantee: the operators after it see only batches of `schema`, in input order."""

    passes_updates = True

    def __init__(self, function: RowFlatMapping, schema: pa.Schema) -> None:
        self._function = function
        self._schema = schema
        self._row_in_work = -1

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return self._schema

    def emits_changes(self, inputs: list[bool]) -> bool:
        return pass_changes_on(inputs, self._schema)

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


class FlatMapRowsWithSides(FlatMapRows):
    """A `FlatMapRows` whose function also gets the side outputs."""

    def __init__(
        self,
        function: RowFlatMappingWithSides,
        schema: pa.Schema,
        sides: Mapping[str, SideOutput],
    ) -> None:
        super().__init__(lambda row: function(row, self._sides), schema)
        self._declared = dict(sides)

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return self._declared

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._sides = RowSides(context.uid, self._declared, context.collect_side)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        super().on_batch(port, batch)
        self._sides.flush()


class MapRows(FlatMapRows):
    def __init__(self, function: RowMapping, schema: pa.Schema) -> None:
        super().__init__(lambda row: (function(row),), schema)


class FilterRows(Operator):
    """Keeps the rows for which the function returns a true value."""

    passes_updates = True

    def __init__(self, predicate: RowPredicate) -> None:
        self._predicate = predicate
        self._row_in_work = -1

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def emits_changes(self, inputs: list[bool]) -> bool:
        return any(inputs)

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


MaskFunction = Callable[[pa.RecordBatch], pa.BooleanArray]
Predicate: TypeAlias = pc.Expression | MaskFunction
"""An Arrow expression such as `field("x") > 3`, or a function from a batch to a boolean mask."""

_MISSING = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ", re.DOTALL)


class Filter(Operator):
    passes_updates = True

    def __init__(self, predicate: Predicate) -> None:
        is_expression = isinstance(predicate, pc.Expression)
        self._mask: MaskFunction = _evaluator(predicate) if is_expression else predicate

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        """Tries the predicate on an empty batch, which shows every error of names and types."""
        empty = pa.RecordBatch.from_pylist([], schema=inputs[0])
        try:
            mask_type = self._mask(empty).type
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise _refusal(error, inputs[0]) from error
        if mask_type != pa.bool_():
            raise Rejected(f"The filter gives {mask_type} values where it must give bool.")
        return inputs[0]

    def emits_changes(self, inputs: list[bool]) -> bool:
        return any(inputs)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        mask = self._mask(batch)
        kept = batch.filter(mask)
        if kept.num_rows:
            if self.context.lineage is not None:
                self.context.lineage.descend_from(np.flatnonzero(mask.fill_null(False)))
            self.context.collect(kept)

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return first_failing_row(self._mask, batch)


def _evaluator(expression: pc.Expression) -> MaskFunction:
    """Evaluates on the calling thread; the slot's cores belong to its subtasks."""
    from pyarrow import acero  # it imports pandas, which takes a third of a second

    def evaluate(batch: pa.RecordBatch) -> pa.BooleanArray:
        rows = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
        project = acero.ProjectNodeOptions([expression], ["mask"])
        plan = acero.Declaration.from_sequence(
            [acero.Declaration("table_source", rows), acero.Declaration("project", project)]
        )
        return plan.to_table(use_threads=False).column("mask").combine_chunks()

    return evaluate


def _refusal(error: Exception, schema: pa.Schema) -> Rejected:
    missing = _MISSING.search(str(error))
    if missing is not None:
        try:
            field_of(schema, missing[1])
        except Rejected as named:
            return named
    reason = str(error).splitlines()[0].strip("'\"")
    return Rejected(f"The filter does not fit its input: {reason}.")


class CheckKeys(Operator):
    """Guarantee: each row that it passes on is in the subtask that owns the row's key.

    Source: Flink's `DataStreamUtils.reinterpretAsKeyedStream`, which does not check.
    """

    passes_updates = True

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        keys = pa.schema([field_of(inputs[0], key) for key in self._keys])
        if not self._keys:
            raise Rejected("A key has at least one column.")
        key_hashes(pa.RecordBatch.from_pylist([], schema=keys), self._keys)
        return inputs[0]

    def emits_changes(self, inputs: list[bool]) -> bool:
        return any(inputs)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._own = range_of(context.subtask, context.parallelism, context.max_parallelism)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        strangers = self._strangers(batch)
        if len(strangers):
            (row,) = batch.select(list(self._keys)).slice(strangers[0], 1).to_pylist()
            raise Rejected(
                f"{self.context.uid!r} has a row with the key {row} in subtask"
                f" {self.context.subtask}, and another one owns that key. The operator in front has"
                " to be keyed by the same columns, and to leave them as they are; otherwise use"
                " key_by."
            )
        if self.context.lineage is not None:
            self.context.lineage.descend_from(np.arange(batch.num_rows))
        self.context.collect(batch)

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return next(iter(self._strangers(batch)), -1)

    def _strangers(self, batch: pa.RecordBatch) -> list[int]:
        groups = key_groups(key_hashes(batch, self._keys), self.context.max_parallelism)
        is_own = (groups >= self._own.first) & (groups <= self._own.last)
        return [] if is_own.all() else np.flatnonzero(~is_own).tolist()


class PassOn(Operator):
    """Unites its inputs, which end in one gate. Source: Flink's union, which needs no operator."""

    passes_updates = True

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        first, *others = inputs
        for position, other in enumerate(others, start=2):
            if not other.equals(first):
                raise Rejected(
                    f"Its first input has the columns ({_columns(first)}) and its input {position}"
                    f" ({_columns(other)}); make them equal, for example with map_batches."
                )
        return first

    def emits_changes(self, inputs: list[bool]) -> bool:
        if any(inputs) and not all(inputs):
            raise Rejected(
                "it unites a changelog with a stream that only adds rows. Put as_records(uid=...)"
                " behind the changelog to read each change as a record"
            )
        return any(inputs)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        if self.context.lineage is not None:
            self.context.lineage.descend_from(np.arange(batch.num_rows))
        self.context.collect(batch)


class AsRecords(PassOn):
    """Reads each change of a changelog as a record; `row_kind` is then a column like any other.

    If the input is running totals, it reads each update as a record.
    """

    passes_updates = False

    def emits_changes(self, inputs: list[bool]) -> bool:
        return False


PandasMapping: TypeAlias = "Callable[[pd.DataFrame], pd.DataFrame]"
"""One batch in, any number of rows out; the index is ignored."""


class PandasFunction(BatchFunction):
    """Guarantee: the operators after it see only batches of `schema`."""

    def __init__(self, function: PandasMapping, schema: pa.Schema) -> None:
        super().__init__(lambda batch: _mapped(function, batch, schema), schema)

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        """Raises Rejected if pandas is missing."""
        try:
            import pandas  # noqa: F401 - only authors of such functions need it
        except ImportError as error:
            raise Rejected(
                "map_pandas needs pandas, which is not installed; run `pip install pandas`, or use"
                " map_batches."
            ) from error
        return super().output_schema(inputs)


def _mapped(function: PandasMapping, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Raises Rejected if the frame does not have the declared columns, or a value does not fit."""
    frame = function(batch.to_pandas())
    if set(frame.columns) != set(schema.names):
        raise Rejected(
            f"The function returned a DataFrame with the columns ({', '.join(map(str, frame))})"
            f" where it declared ({', '.join(schema.names)})."
        )
    try:
        return pa.RecordBatch.from_pandas(frame, schema=schema, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = "; ".join(map(str, error.args))
        raise Rejected(f"A value of the DataFrame does not fit its column: {reason}") from error
