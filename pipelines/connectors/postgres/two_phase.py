"""Sink: rows of a PostgreSQL table, exactly once, by COPY and PREPARE TRANSACTION.

The rows are copied as they come, prepared at the barrier and committed when the checkpoint has
completed. If the transaction is gone by then, a marker row that was prepared with the rows decides:
if the marker is there, the transaction was committed; if not, the rows are lost. Use this sink for
intervals that are too large to wait in memory and in the checkpoint; otherwise, `postgres.insert`
does the same and needs no setting of the server.

The sink does not trust the answer to PREPARE TRANSACTION: if a statement of the transaction failed,
the server rolls back and reports success. So the sink checks the status before, and looks for the
gid after. COPY uses PostgreSQL's binary format, which costs client and server less than text and
leaves no spelling to get wrong. The server does not convert it, so each value is sent in the width
of its column.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
import sqlalchemy as sa
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg import sql
from psycopg.pq import TransactionStatus

from pipelines.connectors.postgres.tables import (
    PUBLISHED,
    Gid,
    Handle,
    PostgresTable,
    PreparedTransactions,
)
from pipelines.connectors.sink import PrepareRefused, SinkContext, Superseded, Unfinished, newest_of
from pipelines.connectors.sink_bases import (
    Marker,
    PreparedTransaction,
    TransactionLost,
    TwoPhaseCommitWriter,
)
from pipelines.connectors.sql.database import SqlDatabase, driver_errors
from pipelines.connectors.sql.tables import ORIGIN, origin_of
from pipelines.domain.errors import ProtocolError, Rejected, Retryable, TargetTaken
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder
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
    """Takes batches of `schema` from the run with that number (`sql.tables`).

    Quotes names itself, so they may contain anything. If an exception ends the context, the table
    gets no row. Raises psycopg.Error.
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
        """Raises PrepareRefused, ProtocolError, Retryable, Rejected.

        1. Pass the fence and check for room; until here nothing has changed. 2. End the COPY and
        write the marker. 3. Prepare. 4. Check that it is there, and that the fence is still ours.
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
        """Breaks off the COPY and closes the connection, so that the server rolls back."""
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
    """Ends a COPY that is no longer wanted."""


@dataclass(frozen=True, slots=True)
class PostgresTwoPhase:
    """Appends rows to a table, exactly once, by prepared transactions.

    The server has to allow them: set `max_prepared_transactions`, 0 by default, to two or more for
    each subtask. They keep their locks and hold VACUUM back until they are ended.

    Args:
        url: the address as SQLAlchemy takes it, `postgresql+psycopg://...`. It is a secret.
        table: the table to write to. It is created if it is absent.
        pipeline: the name of the pipeline. The target belongs to it alone.

    Building the pipeline raises Rejected for a column that has no type in PostgreSQL. A start
    raises it if the table does not fit.
    """

    url: str = field(repr=False)
    table: str
    _: KW_ONLY
    pipeline: str

    @property
    def guarantee(self) -> str:
        return "exactly-once"

    def check_columns(self, schema: pa.Schema) -> None:
        """See `ChecksColumns`."""
        self._table.check_columns(schema)

    def validate(self, schema: pa.Schema) -> None:
        database = SqlDatabase(self.url)
        try:
            self._table.validate(database, schema)
            database.examine(lambda connection: _check_allowed(connection, database.name))
        finally:
            database.close()

    def open(self, context: SinkContext, schema: pa.Schema) -> "PreparingWriter":
        database = SqlDatabase(self.url)
        number = self._table.enter(database, context, schema)
        restored_id = database.transaction(
            lambda connection: self._table.start_of(connection, context.run_id)
        )
        transactions = PreparedTransactions(database, self._table)
        target = PreparedTarget(transactions, context, number, restored_id)
        return PreparingWriter(target, context, schema)

    @property
    def target(self) -> str:
        """See `HoldsTarget`."""
        return self._table.description

    def holder(self) -> Holder | None:
        return self._table.holder(self.url)

    def hold(self, claim: Claim) -> None:
        self._table.hold(self.url, claim)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        """Rolls back what this run has prepared behind its starting point.

        Keeps what other runs have prepared: `discard` ends the part that no point needs.
        """
        database = SqlDatabase(self.url)
        restored_id = newest_of(ancestors).get(run_id, 0)
        try:
            transactions = PreparedTransactions(database, self._table)
            for gid in transactions.all():
                if gid.is_behind(transactions.place, run_id, restored_id):
                    transactions.roll_back(str(gid))
            superseded = self._table.rewind(database, ancestors, run_id)
            database.transaction(
                lambda connection: self._table.remember_start(connection, run_id, restored_id)
            )
        finally:
            database.close()
        return superseded

    def unfinished(self) -> list[Unfinished]:
        """See `LeavesUnfinished`. A gid names the start of its interval, not its checkpoint."""
        with SqlDatabase.opened(self.url) as database:
            found = PreparedTransactions(database, self._table).written()
        return [Unfinished(str(gid), gid.run_id, "prepared transactions") for gid in found]

    def discard(self, names: Collection[str], run_id: RunId) -> int:
        with SqlDatabase.opened(self.url) as database:
            transactions = PreparedTransactions(database, self._table)
            ended = [transactions.roll_back_as_holder(name, run_id) for name in names]
        return sum(ended)

    @property
    def _table(self) -> PostgresTable:
        return PostgresTable(self.table, self.pipeline)


class PreparingWriter(TwoPhaseCommitWriter):
    """Gives the ledger the name under which a transaction is prepared."""

    def token(self, committable: Json) -> str:
        prepared = msgspec.convert(committable, PreparedTransaction)
        return msgspec.convert(prepared.handle, Handle).gid


class PreparedTarget:
    """The target of a `TwoPhaseCommitWriter`.

    `number` is the run's; `restored_id` is the checkpoint from which the run starts.
    """

    def __init__(
        self,
        transactions: PreparedTransactions,
        context: SinkContext,
        number: int,
        restored_id: int,
    ) -> None:
        self._transactions = transactions
        self._context = context
        self._number = number
        self._restored_id = restored_id

    def begin(
        self, context: SinkContext, schema: pa.Schema, after: CheckpointId
    ) -> CopyTransaction:
        interval = max(after, self._restored_id) + 1
        gid = Gid.of(self._transactions.place, context, interval)
        return CopyTransaction(self._transactions, context, schema, gid, self._number)

    def commit(self, handle: Json) -> None:
        """Skips what was prepared for another table or database: a restore there commits it."""
        prepared = msgspec.convert(handle, Handle)
        gid = Gid.parsed(prepared.gid)
        if gid is None or gid.place == self._transactions.place:
            database = self._transactions.database
            database.transaction(lambda connection: self._commit(connection, prepared))

    def end_orphans(self, context: SinkContext, keep: list[Json]) -> None:
        kept = {msgspec.convert(handle, Handle).gid for handle in keep}
        for gid in self._transactions.all():
            if gid.is_orphan_of(self._transactions.place, context) and str(gid) not in kept:
                self._transactions.roll_back(str(gid))

    def close(self) -> None:
        self._transactions.database.close()

    def _commit(self, connection: sa.Connection, prepared: Handle) -> None:
        """Commits behind the fence, so that no rewind comes in between.

        1. The marker proves that the rows are there; if their name is prepared again since then,
        that is another program's. 2. Commit. 3. Look for the marker again: an earlier attempt may
        have committed in between.
        """
        table, marker = self._transactions.table, prepared.marker
        table.pass_fence(connection, self._context)
        is_there = (
            table.is_published(connection, marker)
            or self._transactions.finish("COMMIT", prepared.gid)
            or table.is_published(connection, marker)
        )
        if not is_there:
            raise TransactionLost(
                f"the server has neither the prepared transaction {prepared.gid} nor its marker",
                on_restore=f"rows that came after it are moved to {table.name}_superseded and"
                " written again",
            )
        table.forget_older(connection, marker)


def _check_allowed(connection: sa.Connection, database: str) -> None:
    if connection.scalar(sa.text("SHOW max_prepared_transactions")) == "0":
        raise Rejected(
            f"The server of {database} allows no prepared transactions: set"
            " max_prepared_transactions to two or more for each subtask and start it again, or use"
            " PostgresInsert, which needs none."
        )
