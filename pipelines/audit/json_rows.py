"""Rows from lines of JSON, as their schema says: times in ISO 8601, binary in base64.

JSON has no NaN and no infinity: where a column of floats holds a null, it cannot be told which of
them was given. Nor can types within lists and structs. `is_ambiguous` says so of a batch.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from itertools import islice
from pathlib import Path

import pyarrow as pa

_LINES = 8_192


def batches_of(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Raises ValueError or ArrowException when a line is no row of the schema."""
    with path.open("rb") as file:
        while lines := list(islice(file, _LINES)):
            yield batch_of(lines, schema)


def batch_of(lines: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Raises ValueError or ArrowException when a line is no row of the schema."""
    rows = [json.loads(line) for line in lines]
    if any(not isinstance(row, dict) or row.keys() != set(schema.names) for row in rows):
        raise ValueError("a line has other columns than the sink takes")
    columns = [_column([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def is_ambiguous(batch: pa.RecordBatch) -> bool:
    return any(pa.types.is_nested(c.type) or (_is_float(c) and c.null_count) for c in batch.columns)


def _is_float(column: pa.Array) -> bool:
    return bool(pa.types.is_floating(column.type))


def _column(values: list[object], kind: pa.DataType) -> pa.Array:
    if pa.types.is_nested(kind):
        return pa.nulls(len(values), kind)  # ambiguous anyway
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.string()).cast(kind)
    known = [None if value is None else _value(value, kind) for value in values]
    return pa.array(known, kind)


def _value(value: object, kind: pa.DataType) -> object:
    if pa.types.is_decimal(kind):
        return Decimal(str(value))
    if pa.types.is_date(kind):
        return date.fromisoformat(str(value))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return base64.b64decode(str(value), validate=True)
    return value
