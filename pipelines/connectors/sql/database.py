"""A database for `SqlUpsert`: connections, short transactions, and how to answer their errors.

Supports SQLite and PostgreSQL. An error means: try again, look first, or end; a locked or
unreachable database is tried again within bounds. One table lists every class of SQLSTATE, a second
one the states that differ from their class. An error without a SQLSTATE comes from SQLite or from
the driver; its Python class decides.

Source: PostgreSQL, Appendix A (error codes); psycopg, `psycopg.errors`.
"""

import math
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from tenacity import (
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from pipelines.connectors.sink import host_of
from pipelines.domain.clock import libpq_patience, patience_s
from pipelines.domain.errors import Rejected, Retryable


class AfterError(StrEnum):
    """All but END repeat the transaction, which first checks if its work is done."""

    AGAIN = "again"
    """The database is away, busy or full. It may work later, however long that takes."""

    LOOK_FIRST = "look first"
    """The work may have been done: a COMMIT whose answer was lost was still under way, or another
    session made the same table. An error that comes back each time is no coincidence, and ends the
    run."""

    END = "end"
    """The same statement fails in the same way each time."""


AGAIN, LOOK_FIRST, END = AfterError.AGAIN, AfterError.LOOK_FIRST, AfterError.END

CLASSES = {
    "02": END,  # no data
    "03": END,  # SQL statement not yet complete
    "08": AGAIN,  # connection exception, also while a COMMIT is under way (08007)
    "09": END,  # triggered action exception
    "0A": END,  # feature not supported
    "0B": END,  # invalid transaction initiation
    "0F": END,  # locator exception
    "0L": END,  # invalid grantor
    "0P": END,  # invalid role
    "0Z": END,  # diagnostics exception
    "10": END,  # XQuery error
    "20": END,  # case not found
    "21": END,  # cardinality violation
    "22": END,  # data exception
    "23": END,  # integrity constraint violation
    "24": END,  # invalid cursor state
    "25": END,  # invalid transaction state
    "26": LOOK_FIRST,  # a prepared statement that a pooler gave to another session
    "27": LOOK_FIRST,  # triggered data change violation
    "28": AGAIN,  # a password that is being changed; at submission it is refused
    "2B": END,  # dependent privileges
    "2D": END,  # invalid transaction termination
    "2F": LOOK_FIRST,  # SQL routine, such as a trigger of the table
    "34": END,  # invalid cursor name
    "38": LOOK_FIRST,  # external routine: a trigger may ask another service
    "39": LOOK_FIRST,  # external routine invocation
    "3B": END,  # savepoint exception
    "3D": END,  # no such database
    "3F": END,  # no such schema
    "40": AGAIN,  # rolled back: serialization, deadlock, or completion unknown (40003)
    "42": END,  # syntax error, access rule, or something that is not there
    "44": END,  # WITH CHECK OPTION
    "53": AGAIN,  # no disk, no memory, no connection
    "54": END,  # larger than a row or a key may be
    "55": AGAIN,  # locked, or a prepared transaction that another session is ending (55000)
    "57": AGAIN,  # shut down, starting, cancelled
    "58": AGAIN,  # an error of the server's disk
    "72": AGAIN,  # snapshot too old
    "F0": AGAIN,  # a configuration file that is being written
    "HV": AGAIN,  # foreign data wrapper: another server
    "P0": END,  # PL/pgSQL: RAISE of a trigger
    "XX": LOOK_FIRST,  # internal error, such as "tuple concurrently updated"
}

STATES = {
    "23505": LOOK_FIRST,  # unique: the row, or our marker, of a COMMIT that was still under way
    "23P01": LOOK_FIRST,  # exclusion, likewise
    "25006": AGAIN,  # read-only: a standby, while another server takes over
    "25P02": LOOK_FIRST,  # the transaction has failed before
    "25P03": AGAIN,  # idle in transaction for too long
    "25P04": AGAIN,  # transaction timeout
    "42710": LOOK_FIRST,  # another session made the same object ...
    "42P04": LOOK_FIRST,  # database ...
    "42P05": LOOK_FIRST,  # prepared statement, as for class 26
    "42P06": LOOK_FIRST,  # schema ...
    "42P07": LOOK_FIRST,  # or table, in spite of IF NOT EXISTS
    "XX001": END,  # data corrupted
    "XX002": END,  # index corrupted
}

READ_ONLY = "25006"


def sqlstate_of(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None)
    return state if isinstance(state, str) else None


def after_error(error: BaseException) -> AfterError:
    if not isinstance(error, DBAPIError):
        return END
    state = sqlstate_of(error)
    by_python = AGAIN if isinstance(error, OperationalError | InterfaceError) else END
    if state is None:
        return by_python
    return STATES.get(state) or CLASSES.get(state[:2], by_python)


LOCK_TIMEOUT_S = 5.0
"""How long one try waits for another writer of the same SQLite file."""

POSTGRES_PORT = 5432
TRIES = 5
LONGEST_PAUSE_S = 1.0

Result = TypeVar("Result")

SUPPORTED = ("sqlite", "postgresql")
"""The dialects that can turn an insert into an update."""


class SqlDatabase:
    """One pool of connections; used by one thread, closed by it."""

    def __init__(self, address: str) -> None:
        """Raises Rejected if it is no SQLite or PostgreSQL address, or its driver is missing."""
        self.url = _parsed(address)
        self.name = self.url.set(query={}).render_as_string(hide_password=True)
        self.dialect = self.url.get_backend_name()
        self._engine = _engine(self.url, self.name)

    @classmethod
    @contextmanager
    def opened(cls, address: str) -> Iterator["SqlDatabase"]:
        with closing(cls(address)) as database:
            yield database

    def is_there(self) -> bool:
        """False for an SQLite file that does not exist yet."""
        return self._file is None or self._file.exists()

    def check_reachable(self) -> bool:
        """False for an SQLite file that does not exist yet but can be made. Raises Rejected."""
        file = self._file
        if file is not None and not self.is_there():
            existing = next(p for p in file.absolute().parents if p.exists())
            if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
                raise Rejected(f"The database {self.name} cannot be made in {existing}.")
            return False
        self.examine(lambda connection: None)
        return True

    def examine(self, work: Callable[[sa.Connection], None]) -> None:
        """A transaction for checks before a start: raises Rejected also if the database is away."""
        try:
            self.transaction(work)
        except Retryable as error:
            raise Rejected(str(error)) from error

    def transaction(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Runs `work` in one transaction, and again if `after_error` says so.

        `work` must be repeatable and look first: an earlier try may have been committed although
        its answer was lost. Raises Retryable if the database stays busy or away, Rejected if it
        refuses the statement.
        """
        if self._file is not None:
            self._file.absolute().parent.mkdir(parents=True, exist_ok=True)
        tries = Retrying(
            retry=retry_if_exception(lambda error: after_error(error) is not AfterError.END),
            stop=stop_after_attempt(TRIES) | stop_after_delay(patience_s(math.inf)),
            wait=wait_random_exponential(multiplier=0.05, max=LONGEST_PAUSE_S),
            reraise=True,
        )
        with self.explained():
            result: Result = tries(self._once, work)
            return result

    @contextmanager
    def begun(self) -> Iterator[sa.Connection]:
        """A transaction for the length of the context, tried once and rolled back on an exception.

        Each of its statements sees what was committed before the statement.
        """
        with self._leaving_standby(), self._engine.connect() as connection:
            each_sees = connection.execution_options(isolation_level="READ COMMITTED")
            with each_sees.begin():
                yield each_sees

    @contextmanager
    def connected(self) -> Iterator["psycopg.Connection"]:
        """A PostgreSQL connection of the caller's own, outside the pool, closed at the end.

        Raises Retryable if the server accepts none.
        """
        positional, named = self._engine.dialect.create_connect_args(self.url)
        with self.explained(), driver_errors("connect"):
            connection = psycopg.connect(*positional, **{**libpq_patience(), **named})
        with closing(connection):
            yield connection

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Wraps statements: Retryable if the database is away, Rejected if it refuses one."""
        try:
            yield
        except DBAPIError as error:
            if after_error(error) is AfterError.AGAIN:
                said = f"The database {self.name} {_problem(error)}: {_said(error)}."
                raise Retryable(said) from error
            raise Rejected(f"The database {self.name} refused a write: {_said(error)}.") from error

    def close(self) -> None:
        self._engine.dispose()

    def _once(self, work: Callable[[sa.Connection], Result]) -> Result:
        with self._leaving_standby(), self._engine.begin() as connection:
            self._bound(connection)
            return work(connection)

    @contextmanager
    def _leaving_standby(self) -> Iterator[None]:
        """Empties the pool if the server takes no writes.

        Otherwise the pool would keep supplying a connection to that server, even after another
        server has taken over.
        """
        try:
            yield
        except DBAPIError as error:
            if sqlstate_of(error) == READ_ONLY:
                self._engine.dispose()
            raise

    def _bound(self, connection: sa.Connection) -> None:
        """While a person waits, limits how long a statement waits for a lock or a slow server."""
        limit_s = patience_s(math.inf)
        if self._file is None and limit_s < math.inf:
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(1000 * limit_s)}")

    @property
    def _file(self) -> Path | None:
        return Path(self.url.database) if self.dialect == "sqlite" and self.url.database else None


def place_of(address: str) -> str:
    """The same text for the same database, however it is addressed, without user and password.

    Raises Rejected if the address is neither SQLite nor PostgreSQL.
    """
    url = _parsed(address)
    if url.get_backend_name() == "sqlite":
        return f"sqlite:///{Path(url.database or '').resolve()}"
    _, given = url.get_dialect()().create_connect_args(url)
    host, port = host_of(str(given.get("host", ""))), given.get("port", POSTGRES_PORT)
    database = given.get("dbname", given.get("user", ""))
    schema = f" with {given['options']}" if "options" in given else ""  # such as search_path
    return f"postgresql://{host}:{port}/{database}{schema}"


def _problem(error: DBAPIError) -> str:
    return "takes no writes now" if sqlstate_of(error) == READ_ONLY else "does not answer"


def _said(error: DBAPIError) -> str:
    """The first line; the others repeat the statement, or advise about the server's machine."""
    return str(error.orig).partition("\n")[0].rstrip(".")


@contextmanager
def driver_errors(statement: str) -> Iterator[None]:
    """Wraps calls that bypass SQLAlchemy, so that psycopg's errors are classified like others."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise OperationalError(statement, None, error) from error
    except psycopg.Error as error:
        raise DBAPIError(statement, None, error) from error


def _parsed(address: str) -> sa.URL:
    try:
        url = sa.make_url(address)
    except ArgumentError as error:
        raise Rejected(
            "The SQL address cannot be read; it looks like sqlite:////absolute/path.sqlite or "
            "postgresql+psycopg://user@host/database."
        ) from error
    if url.get_backend_name() not in SUPPORTED:
        raise Rejected(
            f"The database {url.get_backend_name()} is not supported; use {' or '.join(SUPPORTED)}."
        )
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise Rejected("An SQLite database in memory is not shared by processes; name a file.")
    return url


def _engine(url: sa.URL, name: str) -> sa.Engine:
    try:
        if url.get_backend_name() != "sqlite":
            options = {**libpq_patience(), **url.query}
            return sa.create_engine(url, pool_pre_ping=True, connect_args=options)
        engine = sa.create_engine(url, connect_args={"timeout": patience_s(LOCK_TIMEOUT_S)})
    except ModuleNotFoundError as error:
        raise Rejected(f"The database {name} needs the Python package {error.name}.") from error
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_immediate)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, record: object) -> None:
    """Switches off the driver's own transactions; ours begin by taking the write lock."""
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _begin_immediate(connection: sa.Connection) -> None:
    """Takes the lock at once: a transaction that reads first could not wait for another writer."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")
