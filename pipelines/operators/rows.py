"""Between Python rows and Arrow: strict, so that no column is filled or dropped unnoticed."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import MAX_OUTPUT_ROWS
from pipelines.operators.operator import Collector

Row = dict[str, Any]
"""One record: column to Python value."""


class RowOutput:
    """Gathers what a row function emits and passes it on in batches of `schema`."""

    def __init__(self, uid: str, schema: pa.Schema, collect: Collector) -> None:
        self._uid = uid
        self._schema = schema
        self._columns = set(schema.names)
        self._collect = collect
        self._rows: list[Row] = []

    def add(self, rows: Iterable[Row]) -> None:
        """Raises Rejected for a row with other columns than were declared."""
        for row in rows:
            if row.keys() != self._columns:
                raise Rejected(
                    f"The function of {self._uid!r} emitted a row with the columns"
                    f" ({', '.join(row)}) where it declared ({', '.join(self._schema.names)})."
                )
            self._rows.append(row)
            if len(self._rows) >= MAX_OUTPUT_ROWS:
                self.flush()

    def flush(self) -> None:
        """Raises Rejected for a value that its column cannot hold."""
        if self._rows:
            arrays = [self._array(field) for field in self._schema]
            self._rows = []
            self._collect(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _array(self, field: pa.Field) -> pa.Array:
        what = f"The column {field.name!r} that {self._uid!r} emits"
        return to_array([row[field.name] for row in self._rows], field.type, what)


def to_array(values: list[Any], type_: pa.DataType, what: str) -> pa.Array:
    """Raises Rejected, beginning with `what`, when a value does not fit."""
    try:
        if pa.types.is_integer(type_):
            _check_whole(values)
        return pa.array(values, type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise Rejected(f"{what} is {type_}; a value does not fit: {reason}") from error


def _check_whole(values: list[Any]) -> None:
    """Arrow would cut off the fraction without a word."""
    for value in values:
        if isinstance(value, float) and not value.is_integer():
            raise ValueError(f"{value!r} is not a whole number")
