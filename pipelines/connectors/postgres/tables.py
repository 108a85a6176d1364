"""The table of a PostgreSQL sink, its markers, and its prepared transactions with their owners.

Rows carry their origin and are rewound like those of `SqlUpsert` (`sql.tables`). The table
`ftdash_published` holds the markers. A marker is visible if and only if the output of its
checkpoint is, because both are written in one transaction. The output of one run, sink and subtask
is published in the order of the checkpoints. So the newest marker covers all before it, and those
are deleted.

The name of a prepared transaction names its owner, so that a writer in any process ends only its
own:

    ftdash-<place>-<uid>-<run>-a<attempt>-s<subtask>-i<interval>

`place` is a digest of database, schema and table, because a server has one list for all its
databases; `uid` is a digest of the sink's uid. `interval` is the beginning of the interval: one
more than the checkpoint before it. The checkpoint that ends it is not known while it is written.
For a completed checkpoint n the beginning is enough: n has passed every subtask, so an interval
that began before n ended with n at the latest. If a transaction is gone, its marker row tells
whether it was committed.

Source: PostgreSQL, PREPARE TRANSACTION and `pg_prepared_xacts`.
"""

import hashlib
import re
from dataclasses import dataclass

import msgspec
import psycopg
import pyarrow as pa
import sqlalchemy as sa
from psycopg import sql

from pipelines.connectors.sink import SinkContext, Superseded, newest_of
from pipelines.connectors.sink_bases import Marker
from pipelines.connectors.sql import tables as sql_tables
from pipelines.connectors.sql.database import SqlDatabase, driver_errors
from pipelines.connectors.sql.tables import number_of
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt, CheckpointId, RunId
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
    sa.Column("checkpoint", sa.BigInteger, nullable=False),  # its own, that it restored
)


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """The table `name`, which belongs to `pipeline` alone; it is created if absent."""

    name: str
    pipeline: str

    def check_columns(self, schema: pa.Schema) -> None:
        """Raises Rejected for a column or name that the table cannot have."""
        sql_tables.output_table(self.name, schema, ())

    def validate(self, database: SqlDatabase, schema: pa.Schema) -> None:
        """Raises Rejected if the database or its table does not fit."""
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
        """Refuses older attempts from now on; returns the number of the run (`sql.tables`).

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
        """Subtasks of one attempt can pass at once; no newer attempt comes in between."""
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
        """Call it in the transaction that writes the rows."""
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
        """Stores the restored checkpoint for the writers of the attempt that starts now."""
        sql_tables.one_at_a_time(connection)
        sql_tables.create_if_absent(connection, STARTS)
        connection.execute(sa.delete(STARTS).where(STARTS.c.sink == self.name))
        start = sa.insert(STARTS).values(sink=self.name, run=run_id, checkpoint=restored_id)
        connection.execute(start)

    def start_of(self, connection: sa.Connection, run_id: RunId) -> int:
        """Returns the checkpoint that the run restored; 0: it has restored none of its own."""
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
        sql_tables.close_attempts(connection, database.dialect, self.name, self.pipeline, run_id)
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


GID_BYTES_MAX = 199
"""PostgreSQL's limit."""

_PATTERN = re.compile(
    r"ftdash-(?P<place>[0-9a-f]{16})-(?P<uid>[0-9a-f]{8})-(?P<run>.+)"
    r"-a(?P<attempt>\d+)-s(?P<subtask>\d+)-i(?P<interval>\d+)"
)


@dataclass(frozen=True, slots=True)
class Gid:
    place: str  # of `place_of`
    uid: str  # a digest
    run_id: RunId
    attempt: Attempt
    subtask: int
    interval: int

    @classmethod
    def of(cls, place: str, context: SinkContext, interval: int) -> "Gid":
        """Raises Rejected if the run's name leaves no room for the rest."""
        gid = cls(
            place=place,
            uid=_digest(4, context.uid),
            run_id=context.run_id,
            attempt=context.attempt,
            subtask=context.subtask,
            interval=interval,
        )
        if len(str(gid).encode()) > GID_BYTES_MAX:
            raise Rejected(
                f"The name of the run {context.run_id} is too long for a prepared transaction of"
                " PostgreSQL; use PostgresInsert."
            )
        return gid

    @classmethod
    def parsed(cls, text: str) -> "Gid | None":
        """Returns None if the name is not one of ours."""
        found = _PATTERN.fullmatch(text)
        if found is None:
            return None
        return cls(
            place=found["place"],
            uid=found["uid"],
            run_id=RunId(found["run"]),
            attempt=Attempt(int(found["attempt"])),
            subtask=int(found["subtask"]),
            interval=int(found["interval"]),
        )

    def __str__(self) -> str:
        return (
            f"ftdash-{self.place}-{self.uid}-{self.run_id}"
            f"-a{self.attempt}-s{self.subtask}-i{self.interval}"
        )

    def is_orphan_of(self, place: str, context: SinkContext) -> bool:
        """True if an earlier attempt of the run and sink left it to this subtask."""
        return (
            self.place == place
            and self.uid == _digest(4, context.uid)
            and self.run_id == context.run_id
            and self.attempt < context.attempt
            and context.inherits(self.subtask)
        )

    def is_behind(self, place: str, run_id: RunId, restored_id: int) -> bool:
        """True if the run prepared it behind its starting point: its checkpoint never completed."""
        return self.place == place and self.run_id == run_id and self.interval > restored_id


def place_of(database: str, schema: str, table: str) -> str:
    return _digest(8, database, schema, table)


def _digest(size: int, *names: str) -> str:
    return hashlib.blake2b("\0".join(names).encode(), digest_size=size).hexdigest()


_LOCKING = """
SELECT x.gid
FROM pg_prepared_xacts x
JOIN pg_locks own ON own.locktype = 'transactionid' AND own.transactionid = x.transaction
  AND own.mode = 'ExclusiveLock' AND own.pid IS NULL
WHERE x.database = current_database() AND 2 = (
  SELECT count(DISTINCT l.relation) FROM pg_locks l
  WHERE l.locktype = 'relation' AND l.pid IS NULL
    AND l.virtualtransaction = own.virtualtransaction
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.relation IN (to_regclass(quote_ident(:output)), to_regclass(quote_ident(:markers)))
)
"""
"""A prepared transaction has no session (no `pid`). Its other locks have the same virtual number as
the lock on its own number. The server changes the virtual number when it restarts."""


class Handle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prepared transaction in a snapshot."""

    gid: str
    marker: Marker


class PreparedTransactions:
    """The prepared transactions of one table, for one subtask or, in the driver, a run's start."""

    def __init__(self, database: SqlDatabase, table: PostgresTable) -> None:
        """Raises Retryable."""
        self.database = database
        self.table = table
        self.place = database.transaction(lambda connection: _place(connection, table.name))

    def all(self) -> list[Gid]:
        """Lists ours, of any run; ignores those of other databases and programs."""
        texts = self.database.transaction(_gids)
        found = [Gid.parsed(text) for text in texts]
        return [gid for gid in found if gid is not None and gid.place == self.place]

    def written(self) -> list[Gid]:
        """Lists those of `all` that hold locks on the output table and on the table of markers.

        Each of ours does, because it has written to both. One of another program that only has such
        a name is left out.
        """
        texts = set(self.database.transaction(self._locking))
        return [gid for gid in self.all() if str(gid) in texts]

    def is_there(self, gid: str) -> bool:
        return gid in self.database.transaction(_gids)

    def has_room(self) -> bool:
        """The limit is the server's, for all its databases."""
        return bool(self.database.transaction(_has_room))

    def finish(self, action: str, gid: str) -> bool:
        """Ends one by COMMIT or ROLLBACK; False: it is gone. Raises psycopg.Error, Retryable."""
        statement = sql.SQL("{} PREPARED {}").format(sql.SQL(action), sql.Literal(gid))
        with self.database.connected() as connection, driver_errors(action):
            connection.autocommit = True
            try:
                connection.execute(statement)
            except psycopg.errors.UndefinedObject:
                return False
        return True

    def roll_back(self, gid: str) -> None:
        """Harmless if it is gone. Raises Retryable."""
        self.database.transaction(lambda _: self.finish("ROLLBACK", gid))

    def roll_back_as_holder(self, gid: str, run_id: RunId) -> bool:
        """Rolls back while `run_id` holds the table; False: it is gone.

        Raises TargetTaken, Retryable.
        """

        def roll_back(connection: sa.Connection) -> bool:
            self.table.pass_as_holder(connection, run_id)
            return self.finish("ROLLBACK", gid)

        return self.database.transaction(roll_back)

    def _locking(self, connection: sa.Connection) -> list[str]:
        names = {"output": self.table.name, "markers": PUBLISHED.name}
        return list(connection.scalars(sa.text(_LOCKING), names))


def _place(connection: sa.Connection, table: str) -> str:
    database, schema = connection.execute(
        sa.text("SELECT current_database(), coalesce(current_schema(), '')")
    ).one()
    return place_of(database, schema, table)


def _gids(connection: sa.Connection) -> list[str]:
    return list(
        connection.scalars(
            sa.text("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        )
    )


def _has_room(connection: sa.Connection) -> object:
    return connection.scalar(
        sa.text(
            "SELECT count(*) < current_setting('max_prepared_transactions')::int"
            " FROM pg_prepared_xacts"
        )
    )
