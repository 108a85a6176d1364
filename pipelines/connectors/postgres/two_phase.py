"""Sink: rows of a PostgreSQL table, exactly once, by PREPARE TRANSACTION.

The rows are copied as they come, prepared at the barrier and committed when the checkpoint has
completed. A marker row, prepared with them, decides when the transaction is gone: it is there if it
was committed, and if it is not, the rows are lost.

For intervals that are too large to wait in memory and in the checkpoint; otherwise
`postgres.insert` does the same and needs nothing of the server.
"""

from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field

import msgspec
import pyarrow as pa
import sqlalchemy as sa

from pipelines.connectors.postgres.copy_transaction import CopyTransaction
from pipelines.connectors.postgres.prepared import Gid, Handle, PreparedTransactions
from pipelines.connectors.postgres.tables import PostgresTable
from pipelines.connectors.sink import SinkContext, Superseded, Unfinished, newest_of
from pipelines.connectors.sql.database import SqlDatabase
from pipelines.connectors.two_phase_commit import (
    PreparedTransaction,
    TransactionLost,
    TwoPhaseCommitWriter,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder
from pipelines.domain.snapshots import Json


@dataclass(frozen=True, slots=True)
class PostgresTwoPhase:
    """`table` of the database at `url` (a secret) belongs to `pipeline` alone.

    The server has to allow prepared transactions: `max_prepared_transactions`, 0 as it comes, two
    or more for each subtask. They hold their locks and hold VACUUM back until they are ended.
    """

    url: str = field(repr=False)
    table: str
    _: KW_ONLY
    pipeline: str

    @property
    def guarantee(self) -> str:
        return "exactly-once"

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
        """What this run has prepared behind its starting point is rolled back. What other runs have
        is not: `discard` ends what no point needs."""
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
        """See `LeavesUnfinished`. A gid says where its interval begins, not which checkpoint ends
        it."""
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
    """Says in the ledger under which name a transaction is prepared."""

    def token(self, committable: Json) -> str:
        prepared = msgspec.convert(committable, PreparedTransaction)
        return msgspec.convert(prepared.handle, Handle).gid


class PreparedTarget:
    """The target of a `TwoPhaseCommitWriter`. `number` is the run's; `restored_id`: where the run
    starts from."""

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
        """What was prepared for another table or database is its own restore's business."""
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
        """The fence is held meanwhile: no rewind comes in between.

        1. The marker proves that the rows are there; what is prepared under their name since then
        is a stranger's. 2. Commit. 3. An earlier attempt may have done so in between.
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
