"""The aggregate functions: count, sum, mean, max, min and count_distinct.

They leave nulls out, as in SQL. A count may have a condition, a boolean column, like SQL's
`FILTER (WHERE ...)`.

An aggregate turns each row into accumulators (`lift`), and accumulators into a result; it does not
combine them in between. Without any value, a result is null and a count 0. Accumulators are
fixed-width columns. Each combines by one associative operation with an identity.

Distinct values of running totals are counted by an operator in front of the aggregation
(`ranking.deduplicate`), which marks the rows that bring a new value to their key. The aggregate
counts the marks, so partial results combine like those of any count. In windows,
`windowing.distinct_counts` counts the values.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected, check
from pipelines.operators.columns import Groups, field_of

if TYPE_CHECKING:
    from collections.abc import Callable


Values = npt.NDArray[Any]
"""One value per row or group: int64, float64, or bool where a sum counts the true ones."""


class Combine(Enum):
    SUM = "sum"
    MAX = "max"
    MIN = "min"


_UFUNC: dict[Combine, np.ufunc] = {
    Combine.SUM: np.add,
    Combine.MAX: np.maximum,
    Combine.MIN: np.minimum,
}


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One column. `type` is int64 or float64."""

    name: str
    type: pa.DataType
    combine: Combine

    @property
    def identity(self) -> int | float:
        """The value of a fresh row: combining with it changes nothing."""
        if self.combine is Combine.SUM:
            return 0 if pa.types.is_integer(self.type) else 0.0
        lowest = self.combine is Combine.MAX
        if pa.types.is_integer(self.type):
            bounds = np.iinfo(np.int64)
            return int(bounds.min if lowest else bounds.max)
        return float("-inf") if lowest else float("inf")

    def reduce(self, values: Values, groups: Groups) -> Values:
        """Combines the rows of each group."""
        if self.combine is Combine.SUM and values.dtype == np.bool_:
            counted = groups.index if values.all() else groups.index[values]
            return np.bincount(counted, minlength=groups.count)
        reduced = np.full(groups.count, self.identity, self._dtype)
        _UFUNC[self.combine].at(reduced, groups.index, values)
        return reduced

    def merge(self, left: Values, right: Values) -> Values:
        combine: Callable[[Values, Values], Values] = _UFUNC[self.combine]
        return combine(left, right)

    def to_arrow(self, values: Values) -> pa.Array:
        return pa.array(values.astype(self._dtype, copy=False), self.type)

    @property
    def _dtype(self) -> type[np.generic]:
        return np.int64 if pa.types.is_integer(self.type) else np.float64


COUNT = "count"
VALUE = "value"


class Aggregate(ABC):
    """An aggregate as the author writes it; `bind` binds it to a schema before use."""

    @abstractmethod
    def bind(self, schema: pa.Schema) -> "BoundAggregate":
        """Raises Rejected naming a column that is missing or cannot be aggregated."""


class BoundAggregate(ABC):
    """`accumulators` are in the order in which `lift` returns and `result` takes them."""

    accumulators: tuple[Accumulator, ...]
    output_type: pa.DataType

    @abstractmethod
    def lift(self, batch: pa.RecordBatch) -> list[Values]:
        """Returns the accumulators of each row alone."""

    @abstractmethod
    def result(self, accumulated: list[Values]) -> pa.Array: ...


@dataclass(frozen=True, slots=True)
class Count(Aggregate):
    """Counts rows, or the rows in which `column` is not null."""

    column: str | None
    where: str | None = None

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        if self.column is not None:
            field_of(schema, self.column)
        check_condition(schema, self.where)
        return _BoundCount(self.column, self.where)


@dataclass(frozen=True, slots=True)
class Fold(Aggregate):
    """One of sum, mean, max, min over the values of `column`."""

    name: str
    column: str

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        input_type = field_of(schema, self.column).type
        is_number = _is_integer(input_type) or pa.types.is_floating(input_type)
        has_order = self.name in ("max", "min") and pa.types.is_timestamp(input_type)
        if not is_number and not has_order:
            raise Rejected(
                f"The {self.name} of column {self.column!r} ({input_type}) is undefined."
            )
        return _BoundFold(self.name, self.column, input_type)


class _BoundCount(BoundAggregate):
    accumulators = (Accumulator(COUNT, pa.int64(), Combine.SUM),)
    output_type = pa.int64()

    def __init__(self, column: str | None, where: str | None = None) -> None:
        self._column = column
        self._where = where

    def lift(self, batch: pa.RecordBatch) -> list[Values]:
        counts = holds(batch, self._where)
        return [counts if self._column is None else counts & _is_valid(batch.column(self._column))]

    def result(self, accumulated: list[Values]) -> pa.Array:
        return pa.array(accumulated[0], pa.int64())


class _BoundFold(BoundAggregate):
    """A value and the number of rows that it combines; with no rows the result is null."""

    def __init__(self, name: str, column: str, input_type: pa.DataType) -> None:
        self._column = column
        self._is_mean = name == "mean"
        is_long = not pa.types.is_floating(input_type) and not self._is_mean
        self._value = Accumulator(
            VALUE, pa.int64() if is_long else pa.float64(), _COMBINE.get(name, Combine.SUM)
        )
        self.accumulators = (self._value, _BoundCount.accumulators[0])
        self.output_type = input_type if name in ("max", "min") else self._value.type

    def lift(self, batch: pa.RecordBatch) -> list[Values]:
        column = batch.column(self._column)
        values = column.cast(self._value.type).fill_null(self._value.identity)
        return [values.to_numpy(zero_copy_only=False), _is_valid(column)]

    def result(self, accumulated: list[Values]) -> pa.Array:
        values, counts = accumulated
        check(len(values) == len(counts), "accumulators have one value per key")
        if self._is_mean:
            values = values / np.maximum(counts, 1)
        arrow = pa.array(values, self._value.type, mask=counts == 0)
        return arrow.cast(self.output_type)


_COMBINE = {"max": Combine.MAX, "min": Combine.MIN}


def _is_integer(given: pa.DataType) -> bool:
    """Excludes uint64, whose sums do not fit the int64 in which they are kept."""
    return bool(pa.types.is_integer(given)) and given != pa.uint64()


def _is_valid(column: pa.Array) -> Values:
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def check_condition(schema: pa.Schema, column: str | None) -> None:
    """Raises Rejected if there is no such boolean column."""
    if column is not None and field_of(schema, column).type != pa.bool_():
        raise Rejected(
            f"The condition {column!r} is {schema.field(column).type}; `where` takes a boolean"
            " column."
        )


def holds(batch: pa.RecordBatch, condition: str | None) -> Values:
    """True in the rows that count; a null condition counts as false."""
    if condition is None:
        return np.ones(batch.num_rows, np.bool_)
    column = batch.column(condition).fill_null(False)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def count(column: str | None = None, *, where: str | None = None) -> Aggregate:
    """Counts the rows of a group; with a column, those in which it is not null.

    `where` names a boolean column: only rows in which it is true count.
    """
    return Count(column, where)


def sum(column: str) -> Aggregate:
    """Sums a column. Integers stay integers (64 bits); everything else becomes a double."""
    return Fold("sum", column)


def mean(column: str) -> Aggregate:
    return Fold("mean", column)


def max(column: str) -> Aggregate:
    """Takes numbers or timestamps; the result has the column's type."""
    return Fold("max", column)


def min(column: str) -> Aggregate:
    return Fold("min", column)


def mark_of(column: str, condition: str | None = None) -> str:
    """Returns the name of the column that marks the rows with a new value of `column`."""
    return f"__first__{column}" if condition is None else f"__first__{column}__where__{condition}"


@dataclass(frozen=True, slots=True)
class CountDistinct(Aggregate):
    column: str
    where: str | None = None

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        field_of(schema, self.column)
        if self.mark not in schema.names:
            if self.where is not None:
                raise Rejected(NO_CONDITION.format(self.column))
            raise Rejected(
                f"count_distinct({self.column!r}) counts for running totals and in windows of time,"
                " not in windows of a number of rows."
            )
        return _BoundCountDistinct(self.mark)

    @property
    def mark(self) -> str:
        return mark_of(self.column, self.where)


NO_CONDITION = (
    "count_distinct({!r}) takes `where` only for running totals of records. Here, count another"
    " column, one that is null in the rows that do not count."
)


class _BoundCountDistinct(BoundAggregate):
    accumulators = (Accumulator(COUNT, pa.int64(), Combine.SUM),)
    output_type = pa.int64()

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def lift(self, batch: pa.RecordBatch) -> list[Values]:
        return [np.asarray(batch.column(self._mark).to_numpy(zero_copy_only=False))]

    def result(self, accumulated: list[Values]) -> pa.Array:
        return pa.array(accumulated[0], pa.int64())


def count_distinct(column: str, *, where: str | None = None) -> Aggregate:
    """Counts the distinct values of a column, exactly; a null is no value.

    The state has every value of each key; in windows of time, until the window is closed.
    Sessions keep every row. Windows of a number of rows cannot count distinct values.

    `where` names a boolean column: only rows in which it is true count. Counts of one
    column under several conditions keep each value once. Only running totals of records
    can use `where`.
    """
    return CountDistinct(column, where)
