"""Sink: rows of a PostgreSQL table, exactly once, by one plain transaction per interval.

The rows wait in the checkpoint. When it has completed, they enter the table in one transaction with
a marker. If the server is away or is killed in between, that only costs time. The alternative is
`postgres.two_phase`, which keeps the rows at the server only.

Usually the server has the rows by then, invisibly. The sink copies them as they come, in an open
transaction that gets the marker when the checkpoint has completed. This is only a shortcut: the
segment in the snapshot is what counts. If the shortcut fails, only the shortcut ends, and the sink
publishes the segment in a separate transaction. Each row carries its checkpoint, which is not known
while the row is written. The sink assumes the next number, and discards the transaction if that
proves wrong.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import REGCLASS

from pipelines.connectors.postgres.tables import PostgresTable
from pipelines.connectors.postgres.two_phase import TableCopy, copying
from pipelines.connectors.sink import SinkContext, Superseded
from pipelines.connectors.sink_bases import FIRST_ATTEMPT, Marker, WriteAheadWriter
from pipelines.connectors.sql.database import SqlDatabase, driver_errors
from pipelines.connectors.sql.tables import number_of
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import NO_CHECKPOINT, CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder

if TYPE_CHECKING:
    import psycopg


STAGES_MAX = 3
"""Open transactions of one subtask; it needs more only while no checkpoint completes."""

LOCK_WAIT_MS = 500
"""How long to wait for a lock while another session changes the table; then rows are not staged."""

log = logging.getLogger(__name__)

_CLASS = sa.table("pg_class", sa.column("oid"), sa.column("relhastriggers"))
_INDEX = sa.table(
    "pg_index", sa.column("indrelid"), sa.column("indisunique"), sa.column("indisexclusion")
)


class NotStaged(Exception):
    """Rows are not staged; the message gives the reason as a clause."""


class Stage:
    """The transaction of one interval, which is assumed to belong to `checkpoint_id`."""

    def __init__(
        self, database: SqlDatabase, table: str, schema: pa.Schema, number: int, at: CheckpointId
    ) -> None:
        """`number` is the run's. Raises NotStaged, Retryable, Rejected."""
        self.checkpoint_id = at
        self._database = database
        self._copying = ExitStack()
        with database.explained(), ExitStack() as opening:
            self._connection = opening.enter_context(database.begun())
            self._check(table)
            driver = cast("psycopg.Connection", self._connection.connection.driver_connection)
            opening.enter_context(driver_errors("COPY"))
            cursor = opening.enter_context(driver.cursor())
            copy = copying(cursor, table, schema, number)
            self._copy: TableCopy = self._copying.enter_context(copy)
            self._open = opening.pop_all()

    def write(self, batch: pa.RecordBatch) -> None:
        with self._database.explained(), driver_errors("COPY"):
            self._copy.write(batch, self.checkpoint_id)

    def end(self) -> None:
        """After this the server has all rows."""
        with self._database.explained(), driver_errors("COPY"):
            self._copying.close()

    def commit(self, mark: Callable[[sa.Connection], None]) -> None:
        """Commits the rows with what `mark` writes.

        Raises what `mark` raises, Rejected, and Retryable, after which the outcome is unknown.
        """
        with self._database.explained(), self._open:
            mark(self._connection)

    def abandon(self) -> None:
        """The server rolls the transaction back."""
        unheard = suppress(_Abandoned, Retryable, Rejected)
        with unheard, self._database.explained(), self._open, self._copying:
            raise _Abandoned

    def _check(self, table: str) -> None:
        """Refuses a table in which invisible rows could block others.

        Unique values do, and a trigger may. Both sides would then wait for each other through a
        checkpoint.
        """
        self._connection.execute(
            sa.select(sa.func.set_config("lock_timeout", f"{LOCK_WAIT_MS}", True))
        )
        place = sa.cast(sa.func.quote_ident(table), REGCLASS)
        guards = sa.or_(_INDEX.c.indisunique, _INDEX.c.indisexclusion)
        is_guarded = sa.exists().where(_INDEX.c.indrelid == place, guards)
        has_triggers = sa.exists().where(_CLASS.c.oid == place, _CLASS.c.relhastriggers)
        if self._connection.scalar(sa.select(sa.or_(is_guarded, has_triggers))):
            raise NotStaged(f"table {table} has triggers, or values that have to be unique")


class Stages:
    """The stages of one subtask, in the order of their checkpoints.

    Raises no error that the segment would survive.
    """

    def __init__(
        self, database: SqlDatabase, table: str, number: int, newest: CheckpointId | None
    ) -> None:
        """`database` serves only the stages, so that they take no connection from necessary work.
        `newest`: the checkpoint prepared last; None: not known yet."""
        self._database = database
        self._table = table
        self._number = number
        self._newest = newest
        self._writing: Stage | None = None
        self._is_given_up = newest is None  # for this interval
        self._ended: dict[CheckpointId, Stage] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        if self._is_given_up:
            return
        try:
            if self._writing is None:
                self._writing = self._begun(batch.schema)
            self._writing.write(batch)
        except (NotStaged, Retryable, Rejected) as why:
            self._give_up(why)

    def end(self, checkpoint_id: CheckpointId) -> None:
        """The rows written since the previous checkpoint belong to `checkpoint_id`."""
        stage, self._writing = self._writing, None
        if stage is not None:
            self._end(stage, checkpoint_id)
        self._newest, self._is_given_up = checkpoint_id, False

    def take(self, checkpoint_id: CheckpointId) -> Stage | None:
        return self._ended.pop(checkpoint_id, None)

    def close(self) -> None:
        for stage in (*self._ended.values(), self._writing):
            if stage is not None:
                stage.abandon()
        self._ended, self._writing = {}, None
        self._database.close()

    def _begun(self, schema: pa.Schema) -> Stage:
        if self._newest is None or len(self._ended) >= STAGES_MAX - 1:
            raise NotStaged(f"{len(self._ended)} of its checkpoints have not completed yet")
        at = CheckpointId(self._newest + 1)
        return Stage(self._database, self._table, schema, self._number, at)

    def _end(self, stage: Stage, checkpoint_id: CheckpointId) -> None:
        try:
            if stage.checkpoint_id != checkpoint_id:
                raise NotStaged(f"they were taken to belong to checkpoint {stage.checkpoint_id}")
            stage.end()
        except (NotStaged, Retryable, Rejected) as why:
            stage.abandon()
            log.info("Rows for checkpoint %d are copied later: %s", checkpoint_id, why)
        else:
            self._ended[checkpoint_id] = stage

    def _give_up(self, why: Exception) -> None:
        log.info("Rows for table %s are copied later: %s", self._table, why)
        self._is_given_up = True
        if self._writing is not None:
            self._writing.abandon()
            self._writing = None


class _Abandoned(Exception):
    """Makes the server roll back a transaction that is no longer needed."""


@dataclass(frozen=True, slots=True)
class PostgresInsert:
    """Appends rows to a table, exactly once.

    The rows become visible when their checkpoint has completed.

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
    """Guarantee: a segment's rows and its marker become visible together, and only once.

    They become visible only while this attempt is the newest.
    """

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
        """Returns False if there is no stage, or its outcome is unknown."""
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
