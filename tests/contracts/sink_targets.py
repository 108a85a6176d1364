"""The kinds of sinks under the contract, and where each one writes in a test."""

import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from pipelines.connectors.files.sink import JSON_LINES, PARQUET, ExactlyOnceFiles, FileFormat
from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.sink import KafkaSink
from pipelines.connectors.kafka.transactions import ExactlyOnceKafka, KafkaUpsert
from pipelines.connectors.kafka.write_ahead import WriteAheadKafka
from pipelines.connectors.postgres.insert import PostgresInsert
from pipelines.connectors.postgres.two_phase import PostgresTwoPhase
from pipelines.connectors.redis.hashes import RedisHashes
from pipelines.connectors.sink import HoldsTarget, Sink, SinkContext, SinkWriter
from pipelines.connectors.sql.upsert import SqlUpsert
from pipelines.domain.ids import Attempt, RunId, Uid
from tests.brokers.kafka_broker import KafkaBroker
from tests.brokers.redis_broker import RedisBroker
from tests.contracts.fake_sinks import FakeLogSink, FakeSink, FakeTransactionsSink
from tests.contracts.sink_host import SCHEMA
from tests.contracts.sink_readers import (
    PARTITIONS,
    FilesReader,
    KafkaReader,
    PostgresReader,
    Reader,
    RedisReader,
    SqliteReader,
)
from tests.postgres_server import PostgresServer

PIPELINE = "delays"
BUFFER_ROWS = 1000


class HeldSink(Sink, HoldsTarget, Protocol):
    """The interface that the contract's tests need."""


class Target:
    """A sink, and the sorted ids that a new reader of its output sees now."""

    def __init__(self, sink: HeldSink, visible: Callable[[], list[int]]) -> None:
        self.sink = sink
        self.visible = visible


@dataclass(frozen=True, slots=True)
class Kind:
    """Builds sinks for a home: a directory of the test with a file that names the server."""

    sink: Callable[[Path, str], HeldSink]
    """Builds the sink of a pipeline."""

    reader: Callable[[Path], Reader]
    server: str | None = None
    """The fixture that starts the server."""

    def target(self, home: Path) -> Target:
        return Target(self.sink(home, PIPELINE), lambda: visible_to(self.reader(home)))

    def made(self, home: Path, request: pytest.FixtureRequest) -> Target:
        """Starts the server if none runs, and makes it known to every process of the test."""
        if self.server is not None:
            (home / "server").write_text(place_at(request.getfixturevalue(self.server), home))
        return self.target(home)


def place_at(server: KafkaBroker | PostgresServer | RedisBroker, home: Path) -> str:
    """Creates a place for this test alone, and returns the address of its server."""
    if isinstance(server, PostgresServer):
        return server.url_of(f"s{uuid.uuid4().hex}")
    if isinstance(server, KafkaBroker):
        server.create_topic(home.name, PARTITIONS)
        return server.bootstrap_servers
    return server.url


def server_of(home: Path) -> str:
    return (home / "server").read_text()


def files_sink(home: Path, pipeline: str, format: FileFormat = PARQUET) -> HeldSink:
    return ExactlyOnceFiles(home / "out", pipeline=pipeline, format=format)


def sqlite_sink(home: Path, pipeline: str, buffer_rows: int = BUFFER_ROWS) -> HeldSink:
    url = f"sqlite:///{home}/out.sqlite"
    return SqlUpsert(url, "results", ("id",), pipeline=pipeline, buffer_rows=buffer_rows)


def postgres_upsert(home: Path, pipeline: str) -> HeldSink:
    return SqlUpsert(server_of(home), "results", ("id",), pipeline=pipeline)


def postgres_sink(
    kind: type[PostgresInsert] | type[PostgresTwoPhase], home: Path, pipeline: str
) -> HeldSink:
    return kind(server_of(home), "results", pipeline=pipeline)


def redis_sink(home: Path, pipeline: str, buffer_rows: int = BUFFER_ROWS) -> HeldSink:
    place = (server_of(home), home.name, ("id",))
    return RedisHashes(*place, pipeline=pipeline, buffer_rows=buffer_rows)


def kafka_sink(kind: type[KafkaSink], home: Path, pipeline: str) -> HeldSink:
    return to_kafka(kind, server_of(home), home.name, pipeline=pipeline)


def kafka_upsert(home: Path, pipeline: str) -> HeldSink:
    place = (KafkaAddress(server_of(home)), home.name, ("id",))
    return KafkaUpsert(*place, pipeline=pipeline, transaction_timeout=timedelta(minutes=1))


def to_kafka(
    kind: type[KafkaSink],
    address: str,
    topic: str,
    *,
    pipeline: str = PIPELINE,
    timeout: timedelta = timedelta(minutes=1),
) -> KafkaSink:
    place = (KafkaAddress(address), topic)
    return kind(*place, pipeline=pipeline, key="id", transaction_timeout=timeout)


def kafka_target(
    kind: type[KafkaSink],
    server: KafkaBroker,
    topic: str,
    *,
    timeout: timedelta = timedelta(minutes=1),
) -> Target:
    """Builds a target on `topic`, which must exist."""
    address = server.bootstrap_servers
    sink = to_kafka(kind, address, topic, timeout=timeout)
    return Target(sink, lambda: visible_to(KafkaReader(address, topic)))


def visible_to(reader: Reader) -> list[int]:
    """Returns the sorted ids that a new reader sees."""
    with closing(reader):
        return sorted(reader.look())


def files_reader(home: Path) -> Reader:
    return FilesReader(home / "out")


def sqlite_reader(home: Path) -> Reader:
    return SqliteReader(home / "out.sqlite")


def postgres_reader(home: Path) -> Reader:
    return PostgresReader(server_of(home))


def redis_reader(home: Path) -> Reader:
    return RedisReader(server_of(home), home.name)


def kafka_reader(home: Path) -> KafkaReader:
    return KafkaReader(server_of(home), home.name)


KINDS = {
    "files": Kind(files_sink, files_reader),
    "json lines": Kind(partial(files_sink, format=JSON_LINES), files_reader),
    "sqlite upsert": Kind(sqlite_sink, sqlite_reader),
    "sqlite unbuffered": Kind(partial(sqlite_sink, buffer_rows=2), sqlite_reader),
    "redis": Kind(redis_sink, redis_reader, "redis_server"),
    "redis unbuffered": Kind(partial(redis_sink, buffer_rows=2), redis_reader, "redis_server"),
    "postgres": Kind(partial(postgres_sink, PostgresInsert), postgres_reader, "postgres"),
    "postgres two-phase": Kind(
        partial(postgres_sink, PostgresTwoPhase), postgres_reader, "postgres"
    ),
    "postgres upsert": Kind(postgres_upsert, postgres_reader, "postgres"),
    "kafka transactions": Kind(partial(kafka_sink, ExactlyOnceKafka), kafka_reader, "kafka_server"),
    "kafka upsert": Kind(kafka_upsert, kafka_reader, "kafka_server"),
    "kafka log": Kind(partial(kafka_sink, WriteAheadKafka), kafka_reader, "kafka_server"),
}
FAKES: dict[str, type[FakeSink]] = {
    "fake": FakeSink,
    "fake log": FakeLogSink,
    "fake transactions": FakeTransactionsSink,
}


def made(kind: str, home: Path, request: pytest.FixtureRequest) -> Target:
    if kind in FAKES:
        fake = FAKES[kind]()
        return Target(fake, fake.visible)
    return KINDS[kind].made(home, request)


def opened(target: Target, run_id: RunId, attempt: int, subtask: int = 0) -> SinkWriter:
    context = SinkContext(run_id, Attempt(attempt), Uid("out"), subtask, 3)
    return target.sink.open(context, SCHEMA)
