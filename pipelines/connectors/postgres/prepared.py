"""What is prepared on a PostgreSQL server: found by name, committed or rolled back from anywhere.

The name of a prepared transaction says who owns it, so that a writer ends only its own:

    ftdash-<place>-<uid>-<run>-a<attempt>-s<subtask>-i<interval>

`place` is a digest of database, schema and table, because a server has one list for all its
databases; `uid` is a digest of the sink's uid.

`interval` is its beginning: one more than the checkpoint before it. The checkpoint that ends it is
not known while it is written. For a completed checkpoint n the beginning is enough: n has passed
every subtask, so an interval that began before n ended with n at the latest.

This module does not decide whether a transaction that is gone was committed: its marker row tells.

Source: PostgreSQL, PREPARE TRANSACTION and `pg_prepared_xacts`.
"""

import hashlib
import re
from dataclasses import dataclass

import msgspec
import psycopg
import sqlalchemy as sa
from psycopg import sql

from pipelines.connectors.postgres.tables import PUBLISHED, PostgresTable
from pipelines.connectors.sink import SinkContext
from pipelines.connectors.sink_bases import Marker
from pipelines.connectors.sql.database import SqlDatabase, driver_errors
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt, RunId

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
        """Raises Rejected when the run's name leaves no room."""
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
        """None: the name is not one of ours."""
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
        """True if the run made it behind its starting point: its checkpoint never completed."""
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
"""A prepared transaction has no session (no `pid`). What else it holds goes by the same virtual
number as the lock on its own number, which the server changes when it restarts."""


class Handle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a snapshot keeps of a prepared transaction."""

    gid: str
    marker: Marker


class PreparedTransactions:
    """Those of one table, for one subtask or, in the driver, for a run's start."""

    def __init__(self, database: SqlDatabase, table: PostgresTable) -> None:
        """Raises Retryable."""
        self.database = database
        self.table = table
        self.place = database.transaction(lambda connection: _place(connection, table.name))

    def all(self) -> list[Gid]:
        """Ours, of any run; those of other databases and programs are not looked at."""
        texts = self.database.transaction(_gids)
        found = [Gid.parsed(text) for text in texts]
        return [gid for gid in found if gid is not None and gid.place == self.place]

    def written(self) -> list[Gid]:
        """Those of `all` that hold locks on the output table and on the table of markers, as each
        of ours does: it has written to both. A stranger's that only has such a name is left out."""
        texts = set(self.database.transaction(self._locking))
        return [gid for gid in self.all() if str(gid) in texts]

    def is_there(self, gid: str) -> bool:
        return gid in self.database.transaction(_gids)

    def has_room(self) -> bool:
        """The limit is the server's, for all its databases."""
        return bool(self.database.transaction(_has_room))

    def finish(self, action: str, gid: str) -> bool:
        """COMMIT or ROLLBACK. False: it is not there. Raises psycopg.Error, Retryable."""
        statement = sql.SQL("{} PREPARED {}").format(sql.SQL(action), sql.Literal(gid))
        with self.database.connected() as connection, driver_errors(action):
            connection.autocommit = True
            try:
                connection.execute(statement)
            except psycopg.errors.UndefinedObject:
                return False
        return True

    def roll_back(self, gid: str) -> None:
        """Harmless when it is gone. Raises Retryable."""
        self.database.transaction(lambda _: self.finish("ROLLBACK", gid))

    def roll_back_as_holder(self, gid: str, run_id: RunId) -> bool:
        """While `run_id` holds the table. False: it is gone. Raises TargetTaken, Retryable."""

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
