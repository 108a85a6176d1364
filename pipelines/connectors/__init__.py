"""The ends of the pipe: sources that rewind, sinks that commit.

    from pipelines.connectors import ExactlyOnceFiles, KafkaTopics

Each connector is imported when its name is first used, so its client library can stay an optional
extra.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.connectors.files.csv import CsvFiles as CsvFiles
    from pipelines.connectors.files.data_frame import DataFrameRows as DataFrameRows
    from pipelines.connectors.files.growing_directory import GrowingDirectory as GrowingDirectory
    from pipelines.connectors.files.growing_directory import csv_directory as csv_directory
    from pipelines.connectors.files.growing_directory import (
        json_lines_directory as json_lines_directory,
    )
    from pipelines.connectors.files.growing_directory import parquet_directory as parquet_directory
    from pipelines.connectors.files.json_lines import JsonLinesFiles as JsonLinesFiles
    from pipelines.connectors.files.parquet import ParquetFiles as ParquetFiles
    from pipelines.connectors.files.sink import JSON_LINES as JSON_LINES
    from pipelines.connectors.files.sink import PARQUET as PARQUET
    from pipelines.connectors.files.sink import ExactlyOnceFiles as ExactlyOnceFiles
    from pipelines.connectors.in_process import ArrowRows as ArrowRows
    from pipelines.connectors.in_process import BlackHole as BlackHole
    from pipelines.connectors.in_process import Collect as Collect
    from pipelines.connectors.in_process import Draws as Draws
    from pipelines.connectors.in_process import Print as Print
    from pipelines.connectors.in_process import SeededGenerator as SeededGenerator
    from pipelines.connectors.kafka.avro import AvroValues as AvroValues
    from pipelines.connectors.kafka.connection import KafkaAddress as KafkaAddress
    from pipelines.connectors.kafka.protobuf import ProtobufValues as ProtobufValues
    from pipelines.connectors.kafka.registry import SchemaRegistry as SchemaRegistry
    from pipelines.connectors.kafka.topics import KafkaTopics as KafkaTopics
    from pipelines.connectors.kafka.transactions import ExactlyOnceKafka as ExactlyOnceKafka
    from pipelines.connectors.kafka.transactions import KafkaUpsert as KafkaUpsert
    from pipelines.connectors.kafka.values import JsonValues as JsonValues
    from pipelines.connectors.kafka.values import RawValues as RawValues
    from pipelines.connectors.kafka.write_ahead import WriteAheadKafka as WriteAheadKafka
    from pipelines.connectors.postgres.insert import PostgresInsert as PostgresInsert
    from pipelines.connectors.postgres.two_phase import PostgresTwoPhase as PostgresTwoPhase
    from pipelines.connectors.redis.hashes import RedisHashes as RedisHashes
    from pipelines.connectors.redis.streams import RedisStreams as RedisStreams
    from pipelines.connectors.source import GrowingSource as GrowingSource
    from pipelines.connectors.sql.upsert import SqlUpsert as SqlUpsert

__all__ = [
    "JSON_LINES",
    "PARQUET",
    "ArrowRows",
    "AvroValues",
    "BlackHole",
    "Collect",
    "CsvFiles",
    "DataFrameRows",
    "Draws",
    "ExactlyOnceFiles",
    "ExactlyOnceKafka",
    "GrowingDirectory",
    "GrowingSource",
    "JsonLinesFiles",
    "JsonValues",
    "KafkaAddress",
    "KafkaTopics",
    "KafkaUpsert",
    "ParquetFiles",
    "PostgresInsert",
    "PostgresTwoPhase",
    "Print",
    "ProtobufValues",
    "RawValues",
    "RedisHashes",
    "RedisStreams",
    "SchemaRegistry",
    "SeededGenerator",
    "SqlUpsert",
    "WriteAheadKafka",
    "csv_directory",
    "json_lines_directory",
    "parquet_directory",
]

_PLACES = {
    "ArrowRows": "in_process",
    "BlackHole": "in_process",
    "AvroValues": "kafka.avro",
    "Collect": "in_process",
    "CsvFiles": "files.csv",
    "DataFrameRows": "files.data_frame",
    "Draws": "in_process",
    "ExactlyOnceFiles": "files.sink",
    "ExactlyOnceKafka": "kafka.transactions",
    "GrowingDirectory": "files.growing_directory",
    "GrowingSource": "source",
    "JSON_LINES": "files.sink",
    "JsonLinesFiles": "files.json_lines",
    "JsonValues": "kafka.values",
    "KafkaAddress": "kafka.connection",
    "KafkaTopics": "kafka.topics",
    "KafkaUpsert": "kafka.transactions",
    "PARQUET": "files.sink",
    "ParquetFiles": "files.parquet",
    "PostgresInsert": "postgres.insert",
    "PostgresTwoPhase": "postgres.two_phase",
    "Print": "in_process",
    "ProtobufValues": "kafka.protobuf",
    "RawValues": "kafka.values",
    "RedisHashes": "redis.hashes",
    "RedisStreams": "redis.streams",
    "SeededGenerator": "in_process",
    "SchemaRegistry": "kafka.registry",
    "SqlUpsert": "sql.upsert",
    "WriteAheadKafka": "kafka.write_ahead",
    "csv_directory": "files.growing_directory",
    "json_lines_directory": "files.growing_directory",
    "parquet_directory": "files.growing_directory",
}
"""{name: its module in this package}"""

_EXTRAS = {"kafka": "kafka", "postgres": "postgres", "redis": "redis", "sql": "postgres"}
"""{package of connectors: the extra that installs its client}"""


def __getattr__(name: str) -> object:
    """Raises ImportError naming the extra if a connector's client is not installed."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__} has no {name!r}")
    place = _PLACES[name]
    try:
        module = import_module(f"{__name__}.{place}")
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(place.partition(".")[0])
        hint = f"; install ftdash[{extra}]" if extra else ""
        raise ImportError(f"{name} needs the package {error.name}{hint}.") from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
