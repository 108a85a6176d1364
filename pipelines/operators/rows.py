"""Converts between Python rows and Arrow, strictly: no column is filled or dropped unnoticed.

`row_list` declares the state of an operator that keeps whole rows of an input.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import MAX_OUTPUT_ROWS
from pipelines.operators.operator import Collector
from pipelines.state.arrow_types import copy_of, may_change
from pipelines.state.backend import BatchListDescriptor

Row = dict[str, Any]
"""One record: column to Python value."""


_ROWS_AT_ONCE = 1_024
"""How many rows exist as dictionaries at a time: more of them slow Python down."""


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yields every row of a batch, in order, with the values that `to_pylist` gives."""
    names = batch.schema.names
    if not names:
        yield from ({} for _ in range(batch.num_rows))
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        columns = [python_values(column) for column in batch.slice(start, _ROWS_AT_ONCE).columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def python_values(column: pa.Array) -> list[Any]:
    """Like `column.to_pylist()`, which would take microseconds for each time in UTC."""
    moment = column.type
    if not pa.types.is_timestamp(moment) or moment.tz != "UTC" or moment.unit == "ns":
        return list(column.to_pylist())
    epoch = _epoch(moment.unit)
    counted = column.view(pa.int64())
    counted = (counted.fill_null(0) if column.null_count else counted).to_numpy()
    try:
        values = [epoch + since for since in counted.astype(f"timedelta64[{moment.unit}]").tolist()]
    except (OverflowError, TypeError):
        return list(column.to_pylist())  # which raises an error that says what is wrong
    if column.null_count:
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[row] = None
    return values


@cache
def _epoch(unit: str) -> datetime:
    epoch: datetime = pa.scalar(0, pa.timestamp(unit, "UTC")).as_py()
    return epoch


class RowOutput:
    """Gathers the rows that a row function emits and passes them on in batches of `schema`.

    Copies values out of a row at once, so that the function may reuse the row, as in Flink.
    """

    def __init__(self, uid: str, schema: pa.Schema, collect: Collector) -> None:
        self._uid = uid
        self._schema = schema
        self._columns = set(schema.names)
        self._collect = collect
        self._gathered: list[tuple[str, list[Any]]] = [(name, []) for name in schema.names]
        self._may_change = any(may_change(field.type) for field in schema)
        self._row_count = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Raises Rejected if a row's columns are not the declared ones."""
        for row in rows:
            if row.keys() != self._columns:
                raise Rejected(
                    f"The function of {self._uid!r} emitted a row with the columns"
                    f" ({', '.join(row)}) where it declared ({', '.join(self._schema.names)})."
                )
            if self._may_change:
                row = copy_of(dict(row))
            for name, values in self._gathered:
                values.append(row[name])
            self._row_count += 1
            if self._row_count >= MAX_OUTPUT_ROWS:
                self.flush()

    def flush(self) -> None:
        """Raises Rejected if a column cannot hold a value."""
        if self._row_count:
            columns = zip(self._schema, self._gathered, strict=True)
            arrays = [self._array(field, values) for field, (_, values) in columns]
            self._gathered = [(name, []) for name in self._schema.names]
            self._row_count = 0
            self._collect(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _array(self, field: pa.Field, values: list[Any]) -> pa.Array:
        what = f"The column {field.name!r} that {self._uid!r} emits"
        return to_array(values, field.type, what)


def to_array(values: list[Any], type_: pa.DataType, what: str) -> pa.Array:
    """Raises Rejected, in a sentence that begins with `what`, if a value does not fit."""
    try:
        if pa.types.is_integer(type_):
            _check_whole(values)
        return pa.array(values, type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise Rejected(f"{what} is {type_}; a value does not fit: {reason}") from error


def _check_whole(values: list[Any]) -> None:
    """Refuses fractions, which Arrow would cut off silently."""
    if not any(issubclass(kind, float) for kind in set(map(type, values))):
        return
    for value in values:
        if isinstance(value, float) and not value.is_integer():
            raise ValueError(f"{value!r} is not a whole number")


def row_list(
    name: str,
    schema: pa.Schema,
    keys: tuple[str, ...],
    time_column: str | None = None,
    *,
    stays_in_memory: bool = False,
) -> BatchListDescriptor:
    """Describes the list; a column that the input has gained later is null in older rows."""
    gained = [column for column in schema.names if column not in (*keys, time_column)]
    return BatchListDescriptor(
        name=name,
        schema=schema,
        key_group_by=keys,
        defaults=dict.fromkeys(gained),
        stays_in_memory=stays_in_memory,
    )
