"""Servers that accept a connection and say nothing: the client gives up soon and names them."""

import socket
import time
from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa
import pytest
from django.db.utils import ConnectionHandler

from ftdash.settings import database_at
from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.coordinator import KafkaCoordinator
from pipelines.connectors.kafka.topics import KafkaTopics
from pipelines.connectors.kafka.values import JsonValues
from pipelines.connectors.postgres.insert import PostgresInsert
from pipelines.connectors.redis.streams import RedisStreams
from pipelines.connectors.split_progress import SplitProgress
from pipelines.domain.clock import libpq_patience, waiting_at_most
from pipelines.domain.errors import Rejected, Retryable

SCHEMA = pa.schema([("key", pa.int64())])
USUAL_S = 600
SOON_S = USUAL_S / 5
"""Far from the shortest and the usual wait, so that a slow machine changes nothing."""

Question = Callable[[int], object]
QUESTIONS: dict[str, Question] = {
    "topics of Kafka": lambda port: topics(port).validate(),
    "offsets of Kafka": lambda port: topics(port).oldest(SplitProgress("t-0", 7)),
    "retention of Kafka": lambda port: topics(port).kept_until_ms([SplitProgress("t-0", 7)]),
    "transactions of Kafka": lambda port: KafkaCoordinator(kafka(port)).ongoing(),
    "a stream of Redis": lambda port: RedisStreams(
        f"redis://127.0.0.1:{port}", ("s",), schema=SCHEMA
    ).validate(),
    "a table of PostgreSQL": lambda port: PostgresInsert(
        f"postgresql+psycopg://ann@127.0.0.1:{port}/d", "t", pipeline="views"
    ).validate(SCHEMA),
}


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_silent_server_is_named_soon_when_a_person_waits(
    silent_port: int, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_long(monkeypatch)
    began = time.monotonic()

    with waiting_at_most(0.1), pytest.raises((Rejected, Retryable), match=f"{silent_port}.*answer"):
        QUESTIONS[question](silent_port)

    assert time.monotonic() - began < SOON_S


@pytest.mark.slow
def test_a_connection_to_a_silent_rows_database_times_out(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.domain.clock.POSTGRESQL_CONNECT_S", 2)
    began = time.monotonic()
    rows = ConnectionHandler({"default": database_at(f"postgres://ann@127.0.0.1:{silent_port}/d")})

    with pytest.raises(psycopg.OperationalError, match="timeout"):
        rows["default"].get_new_connection(rows["default"].get_connection_params())

    assert time.monotonic() - began < SOON_S


def test_the_options_in_a_database_address_override_the_defaults() -> None:
    url = "postgres://ann@db/d?connect_timeout=3&keepalives_idle=60"

    options = database_at(url)["OPTIONS"]

    assert options == {**libpq_patience(), "connect_timeout": 3, "keepalives_idle": 60}


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


def topics(port: int) -> KafkaTopics:
    return KafkaTopics(kafka(port), ("t",), format=JsonValues(SCHEMA))


def kafka(port: int) -> KafkaAddress:
    return KafkaAddress(f"127.0.0.1:{port}")


def wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    connectors = "pipelines.connectors"
    monkeypatch.setattr(f"{connectors}.kafka.connection.ANSWER_TURNS", 2 * USUAL_S)
    for module in ("kafka.connection", "kafka.coordinator", "redis.connection"):
        monkeypatch.setattr(f"{connectors}.{module}.ANSWER_TIMEOUT_S", USUAL_S)
    monkeypatch.setattr("pipelines.domain.clock.POSTGRESQL_CONNECT_S", USUAL_S)
