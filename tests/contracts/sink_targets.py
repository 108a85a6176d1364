"""The sinks that the contract is held against, each with a reader that knows nothing of it."""

import json
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import redis

from pipelines.connectors.files.formats import JSON_LINES
from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.connectors.postgres.insert import PostgresInsert
from pipelines.connectors.postgres.two_phase import PostgresTwoPhase
from pipelines.connectors.redis.hashes import RedisHashes
from pipelines.connectors.sink import Sink, SinkContext, SinkWriter
from pipelines.connectors.sql.upsert import SqlUpsert
from pipelines.domain.ids import Attempt, RunId, Uid
from tests.contracts.fake_sinks import FakeLogSink, FakeSink, FakeTransactionsSink
from tests.contracts.sink_host import SCHEMA
from tests.postgres_server import PostgresServer

REDIS_URL = "redis-url"
"""A file of the test's directory that says where its server is."""


class Target:
    """A sink, and how a reader who knows nothing of it sees its output: sorted ids."""

    def __init__(self, kind: str, sink: Sink, visible: Callable[[], list[int]]) -> None:
        self.kind = kind
        self.sink = sink
        self.visible = visible


def files_sink(home: Path, pipeline: str) -> Sink:
    return ExactlyOnceFiles(home / "out", pipeline=pipeline)


def json_lines_sink(home: Path, pipeline: str) -> Sink:
    return ExactlyOnceFiles(home / "out", pipeline=pipeline, format=JSON_LINES)


def sql_sink(home: Path, pipeline: str, buffer_rows: int = 1000) -> Sink:
    return SqlUpsert(
        f"sqlite:///{home}/out.sqlite",
        "results",
        ("id",),
        pipeline=pipeline,
        buffer_rows=buffer_rows,
    )


def url_in(home: Path) -> str:
    """Of the database that `give_database` has said is to be used."""
    return (home / "database").read_text()


def give_database(home: Path, server: PostgresServer) -> None:
    """One schema for each test."""
    (home / "database").write_text(server.url_of(f"s{uuid.uuid4().hex}"))


def postgres_sink(home: Path, pipeline: str) -> Sink:
    return PostgresInsert(url_in(home), "results", pipeline=pipeline)


def postgres_two_phase(home: Path, pipeline: str) -> Sink:
    return PostgresTwoPhase(url_in(home), "results", pipeline=pipeline)


def postgres_upsert(home: Path, pipeline: str) -> Sink:
    return SqlUpsert(url_in(home), "results", ("id",), pipeline=pipeline)


def visible_in_postgres(home: Path) -> list[int]:
    with psycopg.connect(url_in(home).replace("+psycopg", "")) as connection:
        try:
            return [i for (i,) in connection.execute("select id from results order by id")]
        except psycopg.errors.UndefinedTable:
            return []


def visible_files(home: Path) -> list[int]:
    files = (home / "out").glob("[!._]*.parquet")
    return sorted(i for file in files for i in pq.read_table(file)["id"].to_pylist())


def visible_lines(home: Path) -> list[int]:
    files = (home / "out").glob("[!._]*.jsonl")
    return sorted(
        json.loads(line)["id"] for file in files for line in file.read_text().splitlines()
    )


def visible_rows(home: Path) -> list[int]:
    with closing(sqlite3.connect(home / "out.sqlite")) as connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master")}
        if "results" not in tables:
            return []
        return sorted(i for (i,) in connection.execute("select id from results"))


def redis_sink(home: Path, pipeline: str, buffer_rows: int = 1000) -> Sink:
    url = (home / REDIS_URL).read_text()
    return RedisHashes(url, home.name, ("id",), pipeline=pipeline, buffer_rows=buffer_rows)


def visible_hashes(home: Path) -> list[int]:
    client = redis.Redis.from_url((home / REDIS_URL).read_text(), decode_responses=True)
    with closing(client):
        rows = list(client.scan_iter(f"{{{home.name}}}:row:*", count=1000))
        return sorted(int(client.hget(row, "id") or -1) for row in rows)


def redis_target(home: Path, buffer_rows: int) -> Target:
    return Target("redis", redis_sink(home, "delays", buffer_rows), lambda: visible_hashes(home))


def fake_target(sink: FakeSink) -> Target:
    return Target("fake", sink, sink.visible)


SINKS: dict[str, Callable[[Path, str], Sink]] = {
    "files": files_sink,
    "sql": sql_sink,
    "redis": redis_sink,
    "postgres": postgres_sink,
    "postgres two-phase": postgres_two_phase,
    "postgres upsert": postgres_upsert,
}
TARGETS: dict[str, Callable[[Path], Target]] = {
    "fake": lambda home: fake_target(FakeSink()),
    "fake log": lambda home: fake_target(FakeLogSink()),
    "fake transactions": lambda home: fake_target(FakeTransactionsSink()),
    "files": lambda home: Target("files", files_sink(home, "delays"), lambda: visible_files(home)),
    "json lines": lambda home: Target(
        "json lines", json_lines_sink(home, "delays"), lambda: visible_lines(home)
    ),
    "sql": lambda home: Target("sql", sql_sink(home, "delays"), lambda: visible_rows(home)),
    "postgres": lambda home: Target(
        "postgres", postgres_sink(home, "delays"), lambda: visible_in_postgres(home)
    ),
    "postgres two-phase": lambda home: Target(
        "postgres two-phase", postgres_two_phase(home, "delays"), lambda: visible_in_postgres(home)
    ),
    "postgres upsert": lambda home: Target(
        "postgres upsert", postgres_upsert(home, "delays"), lambda: visible_in_postgres(home)
    ),
    "sql unbuffered": lambda home: Target(
        "sql", sql_sink(home, "delays", buffer_rows=2), lambda: visible_rows(home)
    ),
    "redis": lambda home: redis_target(home, 1000),
    "redis unbuffered": lambda home: redis_target(home, 2),
}


def opened(target: Target, run_id: RunId, attempt: int, subtask: int = 0) -> SinkWriter:
    context = SinkContext(run_id, Attempt(attempt), Uid("out"), subtask, 3)
    return target.sink.open(context, SCHEMA)
