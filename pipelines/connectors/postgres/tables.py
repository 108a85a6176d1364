"""The table of a PostgreSQL sink: whose it is, whether it fits, and what has been published to it.

Rows carry their origin and are rewound as those of `SqlUpsert` are (`sql.tables`). The
table `ftdash_published` holds the markers: a row is visible when, and only when, the output of that
checkpoint is, because both are written in one transaction.

Of one run, sink and subtask, output is published in the order of the checkpoints. So the newest
marker speaks for all before it, and those are deleted.
"""

from dataclasses import dataclass

import pyarrow as pa
import sqlalchemy as sa

from pipelines.connectors.sink import SinkContext, Superseded, newest_of
from pipelines.connectors.sink_bases import Marker
from pipelines.connectors.sql import tables as sql_tables
from pipelines.connectors.sql.database import SqlDatabase
from pipelines.connectors.sql.tables import number_of
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder

PUBLISHED = sa.Table(
    "ftdash_published",
    sa.MetaData(),
    sa.Column("sink", sa.Text, primary_key=True),  # the output table
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("uid", sa.Text, primary_key=True),
    sa.Column("subtask", sa.BigInteger, primary_key=True),
    sa.Column("checkpoint", sa.BigInteger, primary_key=True),
)


TAKE_OVER_WAIT_MS = 2_000
"""How long the driver waits for a writer of an older attempt that hangs while it publishes."""

STARTS = sa.Table(
    "ftdash_starts",
    sa.MetaData(),
    sa.Column("sink", sa.Text, primary_key=True),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("checkpoint", sa.BigInteger, nullable=False),  # of the run, that it restored
)


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """`name` belongs to `pipeline` alone; it is made if absent."""

    name: str
    pipeline: str

    def check_columns(self, schema: pa.Schema) -> None:
        """Raises Rejected."""
        sql_tables.output_table(self.name, schema, ())

    def validate(self, database: SqlDatabase, schema: pa.Schema) -> None:
        """Raises Rejected."""
        output = sql_tables.output_table(self.name, schema, ())
        if database.dialect != "postgresql":
            raise Rejected(
                f"The database {database.name} is not PostgreSQL; use SqlUpsert to write to it."
            )
        database.check_reachable()
        database.examine(lambda connection: self._check(connection, database, output))

    @property
    def description(self) -> str:
        return f"table {self.name}"

    def holder(self, url: str) -> Holder | None:
        with SqlDatabase.opened(url) as database:
            return database.transaction(
                lambda connection: sql_tables.holder_of(connection, self.name)
            )

    def hold(self, url: str, claim: Claim) -> None:
        """Raises TargetTaken, Retryable, Rejected."""
        with SqlDatabase.opened(url) as database:
            database.transaction(lambda connection: self._hold(connection, claim))

    def enter(self, database: SqlDatabase, context: SinkContext, schema: pa.Schema) -> int:
        """From now on older attempts are refused; the number of the run (`sql.origins`).

        Raises Rejected, ProtocolError, Retryable.
        """
        output = sql_tables.output_table(self.name, schema, ())
        return database.transaction(
            lambda connection: self._enter(connection, database, output, context)
        )

    def rewind(
        self, database: SqlDatabase, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        items = database.transaction(
            lambda connection: self._rewind(connection, database, ancestors, run_id)
        )
        return Superseded(items, f"table {self.name}_superseded") if items else None

    def pass_fence(self, connection: sa.Connection, context: SinkContext) -> None:
        """Subtasks of one attempt pass at the same time; no newer attempt comes in between."""
        sql_tables.pass_fence(
            connection, self.name, context.run_id, context.attempt, is_shared=True
        )

    def pass_as_holder(self, connection: sa.Connection, run_id: RunId) -> None:
        """Until the transaction ends, no other run takes the table over. Raises TargetTaken."""
        sql_tables.pass_as_holder(connection, self.name, run_id, is_shared=True)

    def is_published(self, connection: sa.Connection, marker: Marker) -> bool:
        newer = sa.and_(_of(self.name, marker), PUBLISHED.c.checkpoint >= marker.checkpoint_id)
        return connection.scalar(sa.select(sa.literal(1)).where(sa.exists().where(newer))) == 1

    def mark(self, connection: sa.Connection, marker: Marker) -> None:
        """In the transaction that writes the rows."""
        connection.execute(
            sa.insert(PUBLISHED).values(
                sink=self.name,
                run=marker.run_id,
                uid=marker.uid,
                subtask=marker.subtask,
                checkpoint=marker.checkpoint_id,
            )
        )

    def forget_older(self, connection: sa.Connection, marker: Marker) -> None:
        older = sa.and_(_of(self.name, marker), PUBLISHED.c.checkpoint < marker.checkpoint_id)
        connection.execute(sa.delete(PUBLISHED).where(older))

    def remember_start(self, connection: sa.Connection, run_id: RunId, restored_id: int) -> None:
        """For the writers of the attempt that starts now."""
        sql_tables.one_at_a_time(connection)
        sql_tables.create_if_absent(connection, STARTS)
        connection.execute(sa.delete(STARTS).where(STARTS.c.sink == self.name))
        start = sa.insert(STARTS).values(sink=self.name, run=run_id, checkpoint=restored_id)
        connection.execute(start)

    def start_of(self, connection: sa.Connection, run_id: RunId) -> int:
        """0: the run has restored no checkpoint of its own."""
        if not sa.inspect(connection).has_table(STARTS.name):
            return 0
        mine = sa.and_(STARTS.c.sink == self.name, STARTS.c.run == run_id)
        return int(connection.scalar(sa.select(STARTS.c.checkpoint).where(mine)) or 0)

    def _check(self, connection: sa.Connection, database: SqlDatabase, output: sa.Table) -> None:
        sql_tables.check_owner(connection, self.name, self.pipeline)
        sql_tables.check_fits(connection, output, database.name)

    def _enter(
        self,
        connection: sa.Connection,
        database: SqlDatabase,
        output: sa.Table,
        context: SinkContext,
    ) -> int:
        sql_tables.one_at_a_time(connection)
        sql_tables.claim_if_absent(
            connection, database.dialect, self.name, self.pipeline, context.run_id
        )
        sql_tables.pass_fence(connection, self.name, context.run_id, context.attempt)
        self._check(connection, database, output)
        aside = sql_tables.superseded_table(output)
        sql_tables.create_if_absent(connection, output, aside, PUBLISHED)
        return number_of(connection, self.name, context.run_id)

    def _hold(self, connection: sa.Connection, claim: Claim) -> None:
        _wait_briefly(connection)
        sql_tables.hold(connection, self.name, self.pipeline, claim)

    def _rewind(
        self,
        connection: sa.Connection,
        database: SqlDatabase,
        ancestors: list[tuple[RunId, CheckpointId]],
        run_id: RunId,
    ) -> int:
        _wait_briefly(connection)
        sql_tables.one_at_a_time(connection)
        sql_tables.check_holds(connection, database.dialect, self.name, self.pipeline, run_id)
        newest = newest_of(ancestors)
        return sql_tables.rewind(connection, database.dialect, self.name, newest, run_id)


def _wait_briefly(connection: sa.Connection) -> None:
    limit = sa.func.set_config("lock_timeout", f"{TAKE_OVER_WAIT_MS}", True)
    connection.execute(sa.select(limit))


def _of(sink: str, marker: Marker) -> sa.ColumnElement[bool]:
    return sa.and_(
        PUBLISHED.c.sink == sink,
        PUBLISHED.c.run == marker.run_id,
        PUBLISHED.c.uid == marker.uid,
        PUBLISHED.c.subtask == marker.subtask,
    )
