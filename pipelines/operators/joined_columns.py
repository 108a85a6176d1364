"""The columns of joined rows: all of the left side, then the right ones that are not keys."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import field_of
from pipelines.operators.lateness import LATE
from pipelines.operators.side_output import SideOutput

SIDES = ("left", "right")
LATE_SIDES = tuple(f"{LATE}_{side}" for side in SIDES)
"""The side outputs for rows that come too late for a join."""


class JoinKind(StrEnum):
    """Which side's rows are emitted even without a partner; the other columns are then null."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"

    @classmethod
    def of(cls, name: str) -> "JoinKind":
        """Raises Rejected naming the kinds that exist."""
        if name not in list(cls):
            raise Rejected(f"There is no {name!r} join; choose one of {', '.join(cls)}.")
        return cls(name)

    def keeps(self, port: int) -> bool:
        return self is JoinKind.FULL or self == SIDES[port]


@dataclass(frozen=True, slots=True)
class JoinedColumns:
    """Build it with `of`."""

    on: tuple[str, ...]
    left: pa.Schema
    right: pa.Schema
    schema: pa.Schema

    @classmethod
    def of(cls, on: tuple[str, ...], left: pa.Schema, right: pa.Schema) -> "JoinedColumns":
        """Raises Rejected naming a column that is missing, differs in type, or is on both sides."""
        for column in on:
            _check_comparable(column, left, right)
        added = [field for field in right if field.name not in on]
        for field in added:
            if field.name in left.names:
                raise Rejected(f"Both sides have a column {field.name!r}; rename one of them.")
        return cls(on, left, right, pa.schema([*left, *added]))

    def pairs(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Joins row i of `left` to row i of `right`."""
        added = [right.column(name) for name in right.schema.names if name not in self.on]
        return pa.RecordBatch.from_arrays([*left.columns, *added], schema=self.schema)

    def alone(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Joins rows of one side to nulls."""
        own = rows.schema.names
        columns = [
            rows.column(field.name) if field.name in own else pa.nulls(rows.num_rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def late_sides(inputs: list[pa.Schema], times: tuple[str, str]) -> dict[str, SideOutput]:
    sides = zip(LATE_SIDES, inputs, times, strict=True)
    return {name: SideOutput(schema, time) for name, schema, time in sides}


def has_null(rows: pa.RecordBatch, columns: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """True where any of the columns is null: such a key equals none, as in SQL."""
    nulls = np.zeros(rows.num_rows, np.bool_)
    for column in columns:
        if rows.column(column).null_count:
            nulls |= pc.is_null(rows.column(column)).to_numpy(zero_copy_only=False)
    return nulls


def _check_comparable(column: str, left: pa.Schema, right: pa.Schema) -> None:
    left_type, right_type = field_of(left, column).type, field_of(right, column).type
    if left_type != right_type:
        raise Rejected(
            f"The join column {column!r} is {left_type} on the left and {right_type} on the right;"
            " both sides must have the same type."
        )
