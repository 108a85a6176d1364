"""Sink: rows of a PostgreSQL table, exactly once, by one plain transaction per interval.

The rows wait in the checkpoint. When it has completed, they enter the table in one transaction with
a marker. If the server is away or is killed in between, that only costs time. Usually the server
has the rows by then (`postgres.staging`). The alternative is `postgres.two_phase`, which keeps the
rows at the server only.
"""

import logging
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import sqlalchemy as sa

from pipelines.connectors.postgres.copy_transaction import copying
from pipelines.connectors.postgres.staging import Stages
from pipelines.connectors.postgres.tables import PostgresTable
from pipelines.connectors.sink import SinkContext, Superseded
from pipelines.connectors.sql.database import SqlDatabase, driver_errors
from pipelines.connectors.sql.origins import number_of
from pipelines.connectors.write_ahead import FIRST_ATTEMPT, Marker, WriteAheadWriter
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PostgresInsert:
    """`table` of the database at `url` (a secret) belongs to `pipeline` alone."""

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
        finally:
            database.close()

    def open(self, context: SinkContext, schema: pa.Schema) -> WriteAheadWriter:
        database = SqlDatabase(self.url)
        number = self._table.enter(database, context, schema)
        newest = NO_CHECKPOINT if context.attempt == FIRST_ATTEMPT else None
        stages = Stages(SqlDatabase(self.url), self.table, number, newest)
        target = PlainTransactions(database, self._table, context, stages)
        return WriteAheadWriter(target, context)

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
        database = SqlDatabase(self.url)
        try:
            return self._table.rewind(database, ancestors, run_id)
        finally:
            database.close()

    @property
    def _table(self) -> PostgresTable:
        return PostgresTable(self.table, self.pipeline)


class PlainTransactions:
    """Guarantee: a segment's rows and its marker become visible together, once, and only while this
    attempt is the newest."""

    def __init__(
        self, database: SqlDatabase, table: PostgresTable, context: SinkContext, stages: Stages
    ) -> None:
        self._database = database
        self._table = table
        self._context = context
        self._stages = stages

    def stage(self, batch: pa.RecordBatch) -> None:
        self._stages.write(batch)

    def end_stage(self, checkpoint_id: CheckpointId) -> None:
        self._stages.end(checkpoint_id)

    def published(self, marker: Marker) -> bool:
        return self._database.transaction(lambda connection: self._is_there(connection, marker))

    def publish(self, marker: Marker, batches: Iterable[pa.RecordBatch]) -> None:
        if not self._commit_stage(marker):
            self._database.transaction(
                lambda connection: self._publish(connection, marker, batches)
            )

    def close(self) -> None:
        self._stages.close()
        self._database.close()

    def _commit_stage(self, marker: Marker) -> bool:
        """False: there is none, or its outcome is unknown."""
        is_own = marker.is_of(self._context)
        stage = self._stages.take(marker.checkpoint_id) if is_own else None
        if stage is None:
            return False
        try:
            stage.commit(lambda connection: self._mark_staged(connection, marker))
        except (Retryable, Rejected) as error:
            log.info("A transaction of %s is done again: %s", self._table.name, error)
            return False
        return True

    def _mark_staged(self, connection: sa.Connection, marker: Marker) -> None:
        self._table.pass_fence(connection, self._context)
        self._mark(connection, marker)

    def _mark(self, connection: sa.Connection, marker: Marker) -> None:
        self._table.mark(connection, marker)
        self._table.forget_older(connection, marker)

    def _is_there(self, connection: sa.Connection, marker: Marker) -> bool:
        self._table.pass_fence(connection, self._context)
        return self._table.is_published(connection, marker)

    def _publish(
        self, connection: sa.Connection, marker: Marker, batches: Iterable[pa.RecordBatch]
    ) -> None:
        if self._is_there(connection, marker):
            return  # the answer to an earlier try had been lost
        self._copy(connection, marker, batches)
        self._mark(connection, marker)

    def _copy(
        self, connection: sa.Connection, marker: Marker, batches: Iterable[pa.RecordBatch]
    ) -> None:
        """All batches of a segment have one schema."""
        pending = iter(batches)
        first = next(pending, None)
        if first is None:
            return
        driver = cast("psycopg.Connection", connection.connection.driver_connection)
        table = self._table.name
        number = number_of(connection, table, marker.run_id)
        with (
            driver_errors("COPY"),
            driver.cursor() as cursor,
            copying(cursor, table, first.schema, number) as copy,
        ):
            for batch in (first, *pending):
                copy.write(batch, marker.checkpoint_id)
