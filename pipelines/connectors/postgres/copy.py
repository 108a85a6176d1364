"""Writes Arrow batches into a PostgreSQL table by one COPY, within the caller's transaction.

Uses PostgreSQL's binary format, which costs client and server less than text and leaves no spelling
to get wrong. The server does not convert it, so each value is sent in the width of its column.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg import sql

from pipelines.connectors.sql.origins import ORIGIN, origin_of
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId

PIECE_ROWS = 65_536
"""How many rows are encoded at once: limits the memory of a COPY, not its size."""

_NARROW = {"int2": pa.int16(), "int4": pa.int32()}


class TableCopy:
    """A COPY that is under way; see `copying`."""

    def __init__(self, copy: psycopg.Copy, table: str, schema: pa.Schema, number: int) -> None:
        self._copy = copy
        self._table = table
        self._schema = schema  # as the table stores it, with the origin
        self._number = number  # of the run
        self._encoder = ArrowToPostgresBinaryEncoder(schema)

    def begin(self) -> None:
        self._copy.write(self._encoder.write_header())

    def write(self, batch: pa.RecordBatch, checkpoint_id: CheckpointId) -> None:
        """Raises psycopg.Error, and Rejected for a value that its column cannot hold."""
        origin = origin_of(self._number, checkpoint_id)
        for start in range(0, batch.num_rows, PIECE_ROWS):
            self._copy.write(self._encoded(batch.slice(start, PIECE_ROWS), origin))

    def end(self) -> None:
        self._copy.write(self._encoder.finish())

    def _encoded(self, piece: pa.RecordBatch, origin: int) -> bytes:
        given = (*piece.columns, pa.repeat(origin, piece.num_rows))
        columns = [
            self._as_stored(column, field)
            for column, field in zip(given, self._schema, strict=True)
        ]
        try:
            return self._encoder.write_batch(pa.record_batch(columns, schema=self._schema))
        except ValueError as error:
            raise Rejected(f"Rows cannot be written to table {self._table}: {error}.") from error

    def _as_stored(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid as error:
            raise Rejected(
                f"A value does not fit column {field.name} of table {self._table}: {error}."
            ) from error


@contextmanager
def copying(
    cursor: "psycopg.Cursor[Any]", table: str, schema: pa.Schema, number: int
) -> Iterator[TableCopy]:
    """Takes batches of `schema` from the run with that number (`sql.origins`).

    Quotes names itself, whatever they contain. If the context is left by an exception, no row is in
    the table. Raises psycopg.Error.
    """
    fields = [*schema, pa.field(ORIGIN, pa.int64())]
    place = sql.Identifier(table)
    columns = sql.SQL(", ").join(sql.Identifier(field.name) for field in fields)
    cursor.execute(sql.SQL("SELECT {} FROM {} LIMIT 0").format(columns, place))
    found = [column.type_code for column in cursor.description or ()]
    stored = pa.schema(
        (field.name, _stored_type(field.type, oid))
        for field, oid in zip(fields, found, strict=True)
    )
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(place, columns)
    with cursor.copy(statement) as copy:
        under_way = TableCopy(copy, table, stored, number)
        under_way.begin()
        yield under_way
        under_way.end()


def _stored_type(written: pa.DataType, oid: int) -> pa.DataType:
    """The stored type of a column that was checked to accept `written`."""
    is_type = pa.types
    if is_type.is_integer(written):
        info = psycopg.adapters.types.get(oid)
        return _NARROW.get(info.name if info else "", pa.int64())
    if is_type.is_floating(written):
        return pa.float64()
    if is_type.is_timestamp(written):
        return pa.timestamp("us", written.tz)
    return written
