"""Rows into PostgreSQL: a run that is exactly once, against COPY.

The bare loop: two processes, each with a connection and one COPY from its first row to its last, in
one transaction and in the same binary format; its table has no columns but the rows'.
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
    """What one process copies."""

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
        """Then drops the table: the next one finds the same room."""
        with psycopg.connect(text_of(self.url, "postgresql"), autocommit=True) as connection:
            found = connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchone()
            connection.execute(f"DROP TABLE {name}".encode())
        if found != (self.records,):
            raise RuntimeError(f"{found} of {self.records} rows arrived in {name}")


@contextmanager
def postgres_end(directory: Path, records: int) -> Iterator[PostgresEnd]:
    """At the server that the environment names, or one of its own."""
    del directory  # the server's belongs to another user
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
