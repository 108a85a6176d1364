"""One interval's rows on their way into a PostgreSQL table, by COPY and PREPARE TRANSACTION.

What PREPARE TRANSACTION answers is not believed: of a transaction in which something failed the
server makes a rollback and calls that a success. So the status is asked for before, and the gid
looked for after.
"""

from contextlib import ExitStack, suppress

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.pq import TransactionStatus

from pipelines.connectors.postgres.copy import TableCopy, copying
from pipelines.connectors.postgres.gids import Gid
from pipelines.connectors.postgres.prepared import Handle, PreparedTransactions
from pipelines.connectors.postgres.tables import PUBLISHED
from pipelines.connectors.sink import PrepareRefused, SinkContext
from pipelines.connectors.sql.database import driver_errors
from pipelines.connectors.write_ahead import Marker
from pipelines.domain.errors import ProtocolError, Retryable, TargetTaken
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import Json

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
