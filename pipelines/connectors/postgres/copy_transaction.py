"""One interval's rows on their way into a PostgreSQL table, by COPY and PREPARE TRANSACTION.

What PREPARE TRANSACTION answers is not believed: of a transaction in which something failed the
server makes a rollback and calls that a success. So the status is asked for before, and the gid
looked for after.

Writes Arrow batches into a PostgreSQL table by one COPY, within the caller's transaction.

Uses PostgreSQL's binary format, which costs client and server less than text and leaves no spelling
to get wrong. The server does not convert it, so each value is sent in the width of its column.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg import sql
from psycopg.pq import TransactionStatus

from pipelines.connectors.postgres.prepared import Gid, Handle, PreparedTransactions
from pipelines.connectors.postgres.tables import PUBLISHED
from pipelines.connectors.sink import PrepareRefused, SinkContext
from pipelines.connectors.sql.database import driver_errors
from pipelines.connectors.sql.origins import ORIGIN, origin_of
from pipelines.connectors.write_ahead import Marker
from pipelines.domain.errors import ProtocolError, Rejected, Retryable, TargetTaken
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Json

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


MARK = sql.SQL("INSERT INTO {} (sink, run, uid, subtask, checkpoint) VALUES (%s, %s, %s, %s, %s)")


class CopyTransaction:
    """One interval's rows, on a connection that ends with it."""

    def __init__(
        self,
        transactions: PreparedTransactions,
        context: SinkContext,
        schema: pa.Schema,
        gid: Gid,
        number: int,  # of the run
    ) -> None:
        self._transactions = transactions
        self._context = context
        self._gid = gid
        self._copying = ExitStack()
        database = transactions.database
        with database.explained(), driver_errors("COPY"), ExitStack() as opening:
            self._connection = opening.enter_context(database.connected())
            self._connection.tpc_begin(str(gid))
            self._cursor = self._connection.cursor()
            copy = copying(self._cursor, transactions.table.name, schema, number)
            self._copy: TableCopy = self._copying.enter_context(copy)
            self._open = opening.pop_all()

    def write(self, batch: pa.RecordBatch) -> None:
        with self._transactions.database.explained(), driver_errors("COPY"):
            self._copy.write(batch, CheckpointId(self._gid.interval))

    def prepare(self, checkpoint_id: CheckpointId) -> Json:
        """1. Ask the fence, and for room; until here nothing has changed. 2. End the COPY and write
        the marker. 3. Prepare. 4. Look whether it is there, and the fence is still ours.

        Raises PrepareRefused, ProtocolError, Retryable, Rejected.
        """
        self._pass_fence()
        if not self._transactions.has_room():
            raise PrepareRefused(
                "The server holds as many prepared transactions as max_prepared_transactions"
                f" allows, so that those of {self._context.uid} wait for the next checkpoint."
            )
        marker = self._marker(checkpoint_id)
        with self._transactions.database.explained(), driver_errors("PREPARE TRANSACTION"):
            self._copying.close()
            self._cursor.execute(MARK.format(sql.Identifier(PUBLISHED.name)), self._row(marker))
            self._prepare()
        self._open.close()
        self._prove()
        return msgspec.to_builtins(Handle(gid=str(self._gid), marker=marker))

    def abandon(self) -> None:
        """The COPY is broken off and the connection closed: the server rolls back."""
        with suppress(_Abandoned, psycopg.Error), self._open, self._copying:
            raise _Abandoned

    def _prepare(self) -> None:
        if self._connection.info.transaction_status is not TransactionStatus.INTRANS:
            raise self._not_prepared()
        self._connection.tpc_prepare()

    def _prove(self) -> None:
        gid = str(self._gid)
        if not self._transactions.is_there(gid):
            raise self._not_prepared()
        try:
            self._pass_fence()
        except (ProtocolError, TargetTaken):
            self._transactions.roll_back(gid)
            raise

    def _pass_fence(self) -> None:
        table = self._transactions.table
        self._transactions.database.transaction(
            lambda connection: table.pass_fence(connection, self._context)
        )

    def _not_prepared(self) -> Retryable:
        name = self._transactions.database.name
        return Retryable(f"The database {name} rolled back what it was to prepare: {self._gid}.")

    def _marker(self, checkpoint_id: CheckpointId) -> Marker:
        context = self._context
        return Marker(
            run_id=context.run_id,
            uid=context.uid,
            subtask=context.subtask,
            checkpoint_id=checkpoint_id,
        )

    def _row(self, marker: Marker) -> tuple[str | int, ...]:
        sink = self._transactions.table.name
        return (sink, marker.run_id, marker.uid, marker.subtask, marker.checkpoint_id)


class _Abandoned(Exception):
    """Why a COPY ends that nobody wants any more."""
