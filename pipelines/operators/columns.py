"""Functions on the columns of a batch, for many operators: names, event time, slices and groups.

Everything is vectorised. Errors name the column; the author of the pipeline sees them after the
uid. A batch is grouped by key, so that state is read and written once per distinct key.

Arrow's dictionary encoding does the hashing. On one core it encodes 170 million int64 keys/s if
there are 1,000 of them, and 40 million if nearly all differ; strings and nulls work too. Looking up
every row in the state and reducing by row number costs several times as much.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

EVENT_TIME = pa.timestamp("ms", "UTC")
MAX_OUTPUT_ROWS = 65_536
"""The most rows of an output batch: a watermark may release a whole history at once."""


def field_of(schema: pa.Schema, column: str) -> pa.Field:
    """Raises Rejected naming the column and the columns that exist."""
    if schema.names.count(column) != 1:
        there_is = ", ".join(schema.names)
        raise Rejected(f"There is no column {column!r}; the columns are {there_is}.")
    return schema.field(column)


def check_event_time(schema: pa.Schema, column: str) -> None:
    if field_of(schema, column).type != EVENT_TIME:
        raise Rejected(
            f"The event time column {column!r} is {schema.field(column).type};"
            f" it must be {EVENT_TIME}."
        )


def longs(column: pa.Array) -> Longs:
    """Returns an integer or timestamp column without nulls as int64."""
    is_time = pa.types.is_timestamp(column.type)
    whole = column.view(pa.int64()) if is_time else column.cast(pa.int64())
    return np.asarray(whole.to_numpy(zero_copy_only=False))


def is_whole(given: pa.DataType) -> bool:
    """True for integers and timestamps, which order as their 64 bits do; uint64 does not fit."""
    is_integer = pa.types.is_integer(given) and given != pa.uint64()
    return bool(is_integer or pa.types.is_timestamp(given))


def timestamps(values_ms: Longs) -> pa.Array:
    return pa.array(values_ms, pa.int64()).view(EVENT_TIME)


def single_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows of a table in one batch, even if there are none."""
    arrays = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def in_slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the batch in pieces of at most MAX_OUTPUT_ROWS, without copying."""
    for start in range(0, batch.num_rows, MAX_OUTPUT_ROWS):
        yield batch.slice(start, MAX_OUTPUT_ROWS)


def rows_with(rows: pa.RecordBatch, flags: Flags) -> pa.RecordBatch:
    """Returns the flagged rows; if all are flagged, the batch itself, without a copy."""
    return rows if flags.all() else rows.filter(pa.array(flags))


def by_value(rows: pa.RecordBatch, values: Longs) -> list[tuple[int, pa.RecordBatch]]:
    """Returns one batch per distinct value, ascending; each has its rows in order of arrival."""
    if len(values) == 0:
        return []
    if (values == values[0]).all():
        return [(int(values[0]), rows)]
    order = np.argsort(values, kind="stable")
    ordered = rows.take(pa.array(order))
    distinct, first = np.unique(values[order], return_index=True)
    ends = [*first[1:].tolist(), len(values)]
    return [
        (value, ordered.slice(begin, end - begin))
        for value, begin, end in zip(distinct.tolist(), first.tolist(), ends, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Groups:
    """`keys` are distinct, in order of first appearance; `index` is the group of each row."""

    keys: pa.RecordBatch
    index: Longs

    @property
    def count(self) -> int:
        return int(self.keys.num_rows)


def group(batch: pa.RecordBatch, columns: list[str]) -> Groups:
    """Rows with equal values in all `columns` (null equals null) are one group."""
    keys = batch.select(columns)
    if len(columns) == 1:
        distinct, index = _encode(keys.column(0))
        return Groups(pa.RecordBatch.from_arrays([distinct], schema=keys.schema), index)
    index = _combined_index(keys)
    return Groups(keys.take(pa.array(one_row_each(index))), index)


def _combined_index(keys: pa.RecordBatch) -> Longs:
    """Encodes column by column; each step keeps the codes below the number of rows."""
    _, index = _encode(keys.column(0))
    for column in keys.columns[1:]:
        index = paired(index, column)
    return index


def paired(index: Longs, column: pa.Array) -> Longs:
    """Groups rows by their group in `index` and their value; numbers groups from 0 without gaps."""
    distinct, codes = _encode(column)
    return _encode(pa.array(index * len(distinct) + codes))[1]


def _encode(column: pa.Array) -> tuple[pa.Array, Longs]:
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.dictionary, np.asarray(encoded.indices.to_numpy()).astype(np.int64)


def one_row_each(index: Longs) -> Longs:
    """Returns one row of each group, in group order; any row will do, as their keys are equal."""
    rows = np.empty(int(index.max(initial=-1)) + 1, np.int64)
    rows[index] = np.arange(len(index))
    return rows
