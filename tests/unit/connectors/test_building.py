"""Building a pipeline contacts no server: every process builds it, even while one is away."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from confluent_kafka import admin

from pipelines import connectors
from pipelines.connectors import (
    PARQUET,
    ArrowRows,
    AvroValues,
    BlackHole,
    Collect,
    CsvFiles,
    DataFrameRows,
    ExactlyOnceFiles,
    ExactlyOnceKafka,
    GrowingDirectory,
    JsonLinesFiles,
    JsonValues,
    KafkaAddress,
    KafkaTopics,
    KafkaUpsert,
    ParquetFiles,
    PostgresInsert,
    PostgresTwoPhase,
    Print,
    RedisHashes,
    RedisStreams,
    SchemaRegistry,
    SeededGenerator,
    SqlUpsert,
    WriteAheadKafka,
    csv_directory,
    json_lines_directory,
    parquet_directory,
)
from pipelines.connectors.kafka.coordinator import KafkaCoordinator
from pipelines.connectors.sink import Sink
from pipelines.connectors.source import AnySource
from pipelines.domain.errors import Rejected
from pipelines.stream import Environment

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string())])
KAFKA = KafkaAddress("kafka.example:9092")
AVRO = AvroValues(SCHEMA, registry=SchemaRegistry("http://registry.example:8081"))
POSTGRES = "postgresql+psycopg://ann@db.example/shop"
REDIS = "redis://redis.example:6379/0"

SOURCES: dict[str, Callable[[Path], AnySource]] = {
    "ArrowRows": lambda home: ArrowRows(SCHEMA.empty_table()),
    "CsvFiles": lambda home: CsvFiles((file(home, "a.csv"),), schema=SCHEMA),
    "DataFrameRows": lambda home: DataFrameRows(lambda spark: None, home, schema=SCHEMA),
    "GrowingDirectory": lambda home: GrowingDirectory(
        home, suffix=".csv", schema=SCHEMA, format_of=lambda path: CsvFiles(path, schema=SCHEMA)
    ),
    "JsonLinesFiles": lambda home: JsonLinesFiles((file(home, "a.jsonl"),), schema=SCHEMA),
    "KafkaTopics": lambda home: KafkaTopics(KAFKA, ("orders",), format=JsonValues(SCHEMA)),
    "KafkaTopics, Avro": lambda home: KafkaTopics(KAFKA, ("orders",), format=AVRO),
    "ParquetFiles": lambda home: ParquetFiles((file(home, "a.parquet"),), schema=SCHEMA),
    "RedisStreams": lambda home: RedisStreams(REDIS, ("orders",), schema=SCHEMA),
    "SeededGenerator": lambda home: SeededGenerator(lambda draws: [], schema=SCHEMA, seed=1),
    "csv_directory": lambda home: csv_directory(home, schema=SCHEMA),
    "json_lines_directory": lambda home: json_lines_directory(home, schema=SCHEMA),
    "parquet_directory": lambda home: parquet_directory(home, schema=SCHEMA),
}
SINKS: dict[str, Callable[[Path], Sink]] = {
    "BlackHole": lambda home: BlackHole(),
    "Collect": lambda home: Collect(),
    "ExactlyOnceFiles": lambda home: ExactlyOnceFiles(home / "out", pipeline="p", format=PARQUET),
    "ExactlyOnceKafka": lambda home: ExactlyOnceKafka(KAFKA, "sums", pipeline="p"),
    "ExactlyOnceKafka, Avro": lambda home: ExactlyOnceKafka(
        KAFKA, "sums", pipeline="p", format=AVRO
    ),
    "KafkaUpsert": lambda home: KafkaUpsert(KAFKA, "sums", ("key",), pipeline="p"),
    "PostgresInsert": lambda home: PostgresInsert(POSTGRES, "sums", pipeline="p"),
    "PostgresTwoPhase": lambda home: PostgresTwoPhase(POSTGRES, "sums", pipeline="p"),
    "Print": lambda home: Print(),
    "RedisHashes": lambda home: RedisHashes(REDIS, "sums:", ("key",), pipeline="p"),
    "SqlUpsert": lambda home: SqlUpsert(POSTGRES, "sums", ("key",), pipeline="p"),
    "WriteAheadKafka": lambda home: WriteAheadKafka(KAFKA, "sums", pipeline="p"),
}
NO_ENDS = {
    "AvroValues",
    "Draws",
    "GrowingSource",
    "JSON_LINES",
    "JsonValues",
    "KafkaAddress",
    "PARQUET",
    "ProtobufValues",
    "RawValues",
    "SchemaRegistry",
}
OF_SERVERS = [name for name in SINKS if name.startswith(("Postgres", "Redis", "Sql"))]
OF_KAFKA = ["ExactlyOnceKafka", "WriteAheadKafka"]


class Contacted(Exception):
    """The code contacted a server, or made a client that would."""


@pytest.fixture(autouse=True)
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise Contacted

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(sa.Engine, "connect", refuse)  # its client is not written in Python
    monkeypatch.setattr(admin, "AdminClient", refuse)
    monkeypatch.setattr(KafkaCoordinator, "__init__", refuse)


@pytest.mark.parametrize("source", SOURCES)
def test_building_with_a_source_contacts_nothing(source: str, tmp_path: Path) -> None:
    env = Environment()
    env.source(SOURCES[source](tmp_path), uid="in").sink(BlackHole(), uid="out")

    pipeline = env.build()

    assert pipeline.schemas["in"].names
    assert pipeline.ends.sinks


@pytest.mark.parametrize("sink", SINKS)
def test_building_with_a_sink_contacts_nothing(sink: str, tmp_path: Path) -> None:
    built = build(SINKS[sink](tmp_path))

    assert built.ends.sinks["out"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sink", [*OF_SERVERS, *OF_KAFKA])
def test_a_start_contacts_the_target(sink: str, tmp_path: Path) -> None:
    """Otherwise the two tests above could pass because no contact is ever noticed."""
    pipeline = build(SINKS[sink](tmp_path))

    with pytest.raises(Contacted):
        pipeline.validate_sinks()


@pytest.mark.parametrize("sink", ["ExactlyOnceFiles", *OF_SERVERS])
def test_a_misfit_column_is_refused_without_contacting_the_server(
    sink: str, tmp_path: Path
) -> None:
    env = Environment()
    text = pa.schema([("text", pa.month_day_nano_interval())])
    rows = env.source(ArrowRows(text.empty_table()), uid="in")

    with pytest.raises(Rejected, match="'out' cannot be built"):
        rows.sink(SINKS[sink](tmp_path), uid="out")


def test_these_tests_build_every_connector() -> None:
    built = {name.partition(",")[0] for name in (*SOURCES, *SINKS)}
    assert built | NO_ENDS == set(connectors.__all__)


def file(home: Path, name: str) -> Path:
    (home / name).touch()
    return home / name


def build(sink: Sink) -> Any:
    env = Environment()
    env.source(ArrowRows(SCHEMA.empty_table()), uid="in").sink(sink, uid="out")
    return env.build()
