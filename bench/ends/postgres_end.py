"""Rows into PostgreSQL: an exactly-once run against COPY.

The bare loop has two processes, each with a connection and one COPY from its first row to its last,
in one transaction and in the same binary format. Its table has only the columns of the rows.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import sqlalchemy as sa
from pgpq import ArrowToPostgresBinaryEncoder

from bench.ends.end import run_between_ends, seconds_for
from bench.whole_run import Measured
from tests.postgres_server import postgres_server
from tests.processes.ends import ROW, SPLITS, generated

GIVEN = "FTDASH_BENCH_POSTGRES"


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that one process copies."""

    url: str
    table: str
    split: int
    records: int  # of all splits


@dataclass(frozen=True, slots=True)
class PostgresEnd:
    """`url` leads to a schema of the benchmark's own."""

    url: sa.URL
    records: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def bare(self) -> float:
        url, name = text_of(self.url, "postgresql"), f"bare_{next(self._numbers)}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                f"CREATE TABLE {name} (key bigint, views bigint, text text)".encode()
            )
        shares = [Rows(url, name, split, self.records) for split in range(SPLITS)]
        took_s = seconds_for(copy_rows, shares)
        self._check_arrived(name)
        return self.records / took_s

    def exactly_once(self) -> Measured:
        url, name = text_of(self.url, "postgresql+psycopg"), f"exact_{next(self._numbers)}"
        measured = run_between_ends(
            self.records, url, to="postgres", source=str(self.records), target=name
        )
        self._check_arrived(name)
        return measured

    def _check_arrived(self, name: str) -> None:
        """Checks the table, then drops it, so that the next one has the same space."""
        with psycopg.connect(text_of(self.url, "postgresql"), autocommit=True) as connection:
            found = connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchone()
            connection.execute(f"DROP TABLE {name}".encode())
        if found != (self.records,):
            raise RuntimeError(f"{found} of {self.records} rows arrived in {name}")


@contextmanager
def postgres_end(directory: Path, records: int) -> Iterator[PostgresEnd]:
    """Yields an end at the server that the environment names, or at one that it starts."""
    del directory  # the server's directory belongs to another user
    with ExitStack() as stack:
        given = os.environ.get(GIVEN)
        url = sa.make_url(given or stack.enter_context(postgres_server()).url)
        schema = stack.enter_context(own_schema(url))
        own = url.update_query_dict({"options": f"-csearch_path={schema}"})
        yield PostgresEnd(own, records - records % SPLITS)


@contextmanager
def own_schema(url: sa.URL) -> Iterator[str]:
    schema = f"ftdash_bench_{os.getpid()}"
    with psycopg.connect(text_of(url, "postgresql"), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        try:
            yield schema
        finally:
            connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


def text_of(url: sa.URL, driver: str) -> str:
    return url.set(drivername=driver).render_as_string(hide_password=False)


def copy_rows(share: Rows) -> None:
    statement = f'COPY "{share.table}" FROM STDIN (FORMAT binary)'.encode()
    encoder = ArrowToPostgresBinaryEncoder(ROW)
    with (
        psycopg.connect(share.url) as connection,
        connection.cursor() as cursor,
        cursor.copy(statement) as copy,
    ):
        copy.write(encoder.write_header())
        for batch in generated(share.records).read(share.split, 0):
            copy.write(encoder.write_batch(batch))
        copy.write(encoder.finish())
