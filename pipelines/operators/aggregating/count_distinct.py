"""Counts the distinct values of a column, exactly.

For running totals, an operator in front of the aggregation (`ranking.deduplicate`) marks the rows
that bring a new value to their key; the aggregate counts the marks, so partial results combine like
those of any count. In windows, `windowing.distinct_counts` counts.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregating.aggregates import (
    COUNT,
    Accumulator,
    Aggregate,
    BoundAggregate,
    Combine,
    Values,
)
from pipelines.operators.columns import field_of


def mark_of(column: str) -> str:
    """The column that says which rows bring a new value of `column`."""
    return f"__first__{column}"


@dataclass(frozen=True, slots=True)
class CountDistinct(Aggregate):
    column: str

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        field_of(schema, self.column)
        if mark_of(self.column) not in schema.names:
            raise Rejected(
                f"count_distinct({self.column!r}) counts for running totals and in windows of time,"
                " not in windows of a number of rows."
            )
        return _BoundCountDistinct(self.column)


class _BoundCountDistinct(BoundAggregate):
    accumulators = (Accumulator(COUNT, pa.int64(), Combine.SUM),)
    output_type = pa.int64()

    def __init__(self, column: str) -> None:
        self._mark = mark_of(column)

    def lift(self, batch: pa.RecordBatch) -> list[Values]:
        return [np.asarray(batch.column(self._mark).to_numpy(zero_copy_only=False))]

    def result(self, accumulated: list[Values]) -> pa.Array:
        return pa.array(accumulated[0], pa.int64())


def count_distinct(column: str) -> Aggregate:
    """Counts the distinct values of a column, exactly; a null is no value.

    The state holds every value of each key; in windows of time, until the window is closed.
    Sessions keep every row. Not in windows of a number of rows.
    """
    return CountDistinct(column)
