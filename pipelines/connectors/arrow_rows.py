"""A source of rows that the author has at hand: a list of dictionaries, or an Arrow table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.connectors.watermark_strategy import EVENT_TIME, check_event_time, times_of_batch
from pipelines.domain.errors import Rejected

BATCH_ROWS = 8_192


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """The rows of a table, in `splits` parts that follow each other. Implements `Source`.

    Every process that builds the pipeline must build the same table. A timestamp column of another
    unit, or without a zone, is taken as UTC and cast.
    """

    table: pa.Table
    timestamp_column: str | None = None
    out_of_orderness_ms: int = 0
    splits: int = 1
    batch_rows: int = BATCH_ROWS

    def __post_init__(self) -> None:
        if self.splits < 1 or self.batch_rows < 1:
            raise Rejected("A source of rows needs at least one split and one row in a batch.")
        object.__setattr__(self, "table", _with_event_time(self.table, self.timestamp_column))
        check_event_time(self.schema, self.timestamp_column)

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return f"rows-{index}" if index < self.splits else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        begin, end = self._bounds(index)
        rest = self.table.slice(begin + offset, max(0, end - begin - offset)).combine_chunks()
        yield from rest.to_batches(max_chunksize=self.batch_rows)

    def event_time_ms(self, index: int, offset: int) -> int | None:
        begin, end = self._bounds(index)
        if self.timestamp_column is None or index >= self.splits or begin + offset >= end:
            return None
        (row,) = self.table.slice(begin + offset, 1).combine_chunks().to_batches()
        return int(times_of_batch(row, self.timestamp_column)[0])

    def split_version(self, index: int) -> str:
        begin, end = self._bounds(index)
        return f"rows {begin} to {end}"

    def _bounds(self, index: int) -> tuple[int, int]:
        rows = self.table.num_rows
        return rows * index // self.splits, rows * (index + 1) // self.splits


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    """`schema` None: it follows from the rows. Raises Rejected when they do not fit it."""
    if schema is None and not rows:
        raise Rejected("Rows that are not there yet have no schema; give one.")
    try:
        return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Rejected(f"The rows do not fit one schema: {error}.") from error


def _with_event_time(table: pa.Table, column: str | None) -> pa.Table:
    if column is None or column not in table.column_names:
        return table
    index = table.schema.get_field_index(column)
    found = table.schema.field(index).type
    if found == EVENT_TIME or not pa.types.is_timestamp(found):
        return table
    return table.set_column(index, column, table.column(index).cast(EVENT_TIME))
