"""Each SQLSTATE has a verdict: it decides if a transaction is repeated, and its final error."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from pipelines.connectors.sql import database as sql_database
from pipelines.connectors.sql.database import (
    CLASSES,
    STATES,
    TRIES,
    AfterError,
    SqlDatabase,
    after_error,
    driver_errors,
)
from pipelines.domain.errors import Rejected, Retryable

KNOWN = sorted(
    each.sqlstate
    for _, each in inspect.getmembers(psycopg.errors, inspect.isclass)
    if isinstance(getattr(each, "sqlstate", None), str)
)
"""All SQLSTATEs of PostgreSQL that the driver knows."""

AGAIN = [
    "08000",  # connection exception
    "08006",  # connection failure
    "08007",  # transaction resolution unknown
    "25006",  # read-only transaction
    "25P03",  # idle in transaction for too long
    "25P04",  # transaction timeout
    "28P01",  # password
    "40001",  # serialization failure
    "40003",  # statement completion unknown
    "40P01",  # deadlock
    "53100",  # disk full
    "53300",  # too many connections
    "55000",  # prepared transaction is busy
    "55P03",  # lock not available
    "57014",  # query cancelled
    "57P01",  # shut down by an administrator
    "57P02",  # crash shutdown
    "57P03",  # cannot connect now
    "58030",  # I/O error
]
LOOK_FIRST = ["23505", "23P01", "25P02", "26000", "38000", "42710", "42P07", "XX000"]
END = [
    "0A000",  # feature not supported
    "22001",  # text too long
    "22P02",  # text that is no number
    "23502",  # not null
    "23503",  # foreign key
    "23514",  # check
    "42501",  # privilege
    "42601",  # syntax
    "42703",  # no such column
    "42P01",  # no such table
    "54000",  # row too large
    "P0001",  # raised by a trigger
    "XX001",  # data corrupted
]


@pytest.mark.parametrize("state", KNOWN)
def test_every_state_that_the_driver_knows_has_a_class_in_the_table(state: str) -> None:
    assert state[:2] in CLASSES


def test_a_state_is_listed_by_itself_only_where_it_differs_from_its_class() -> None:
    assert set(STATES) <= set(KNOWN)
    assert [state for state in STATES if STATES[state] is CLASSES[state[:2]]] == []


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        *((state, AfterError.AGAIN) for state in AGAIN),
        *((state, AfterError.LOOK_FIRST) for state in LOOK_FIRST),
        *((state, AfterError.END) for state in END),
    ],
)
def test_a_transaction_obeys_the_verdict(
    state: str, verdict: AfterError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_database, "LONGEST_PAUSE_S", 0.0)
    tries: list[int] = []

    def work(connection: sa.Connection) -> None:
        tries.append(1)
        with driver_errors("x"):
            raise psycopg.errors.lookup(state)("no")

    with a_database(tmp_path) as database:
        kind = Retryable if verdict is AfterError.AGAIN else Rejected
        with pytest.raises(kind, match="no"):
            database.transaction(work)

    assert len(tries) == (1 if verdict is AfterError.END else TRIES)


@pytest.mark.parametrize("state", LOOK_FIRST)
def test_work_that_is_found_done_on_a_retry_has_succeeded(state: str, tmp_path: Path) -> None:
    looks = iter([psycopg.errors.lookup(state)("under way")])

    def work(connection: sa.Connection) -> str:
        with driver_errors("x"):
            for error in looks:
                raise error
        return "there"

    with a_database(tmp_path) as database:
        assert database.transaction(work) == "there"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (psycopg.OperationalError("connection failed"), AfterError.AGAIN),
        (psycopg.InterfaceError("the connection is closed"), AfterError.AGAIN),
        (psycopg.DataError("cannot dump"), AfterError.END),
        (psycopg.ProgrammingError("placeholder"), AfterError.END),
    ],
)
def test_a_driver_error_without_a_state_is_judged_by_its_exception_class(
    error: psycopg.Error, verdict: AfterError
) -> None:
    with pytest.raises(sa.exc.DBAPIError) as raised, driver_errors("x"):
        raise error

    assert after_error(raised.value) is verdict


@contextmanager
def a_database(directory: Path) -> Iterator[SqlDatabase]:
    database = SqlDatabase(f"sqlite:///{directory}/x.sqlite")
    try:
        yield database
    finally:
        database.close()
