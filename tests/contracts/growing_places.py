"""Places with records for growing sources: files, streams and topics behind one interface."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines.connectors.files.growing_directory import (
    csv_directory,
    json_lines_directory,
    parquet_directory,
)
from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.topics import KafkaTopics
from pipelines.connectors.kafka.values import JsonValues
from pipelines.connectors.redis.streams import RedisStreams
from pipelines.connectors.source import Batch, GrowingSource, LoggedRecords
from pipelines.connectors.split_progress import SplitProgress
from tests.brokers.kafka_broker import KafkaBroker
from tests.brokers.redis_broker import RedisBroker
from tests.unit.runtime.growing_log import GrowingLog

SCHEMA = pa.schema([("key", pa.int64())])


class Place(Protocol):
    """A test chooses the names; the source decides what it calls each split."""

    is_log: bool  # a test can add records to a split, and its oldest ones can be lost

    def source(self, *, is_bounded: bool = False) -> GrowingSource: ...

    def write(self, name: str, keys: list[int]) -> None:
        """Creates a split of that name, or appends records to that of a log."""
        ...

    def lose(self, name: str, count: int) -> None:
        """Deletes the oldest `count` records of a log, or the whole file."""
        ...


class MemoryPlace:
    is_log = True

    def __init__(self) -> None:
        self._logs: dict[str, list[tuple[int, int, int]]] = {}
        self._oldest: dict[str, int] = {}

    def source(self, *, is_bounded: bool = False) -> GrowingSource:
        interval_ms = None if is_bounded else 1_000
        return GrowingLog(self._logs, discovery_interval_ms=interval_ms, oldest_offset=self._oldest)

    def write(self, name: str, keys: list[int]) -> None:
        log = self._logs.setdefault(name, [])
        log += [(3 * key, key, key) for key in keys]

    def lose(self, name: str, count: int) -> None:
        self._oldest[name] = self._logs[name][count - 1][0] + 1


@dataclass(slots=True)
class DirectoryPlace:
    directory: Path
    suffix: str
    is_log: bool = False

    def source(self, *, is_bounded: bool = False) -> GrowingSource:
        options: dict[str, Any] = {"look_every": None} if is_bounded else {}
        build = {
            ".parquet": parquet_directory,
            ".csv": csv_directory,
            ".jsonl": json_lines_directory,
        }[self.suffix]
        source = build(self.directory, schema=SCHEMA, **options)
        assert isinstance(source, GrowingSource)
        return source

    def write(self, name: str, keys: list[int]) -> None:
        table = pa.table({"key": pa.array(keys, pa.int64())})
        new, file = self.directory / f".{name}", self.directory / f"{name}{self.suffix}"
        match self.suffix:
            case ".parquet":
                pq.write_table(table, new)
            case ".csv":
                pacsv.write_csv(table, new, pacsv.WriteOptions(include_header=False))
            case _:
                new.write_text("".join(f"{json.dumps({'key': key})}\n" for key in keys))
        new.rename(file)

    def lose(self, name: str, count: int) -> None:
        (self.directory / f"{name}{self.suffix}").unlink()


@dataclass(slots=True)
class RedisPlace:
    broker: RedisBroker
    prefix: str  # so that each test has streams of its own
    is_log: bool = True
    names: list[str] = field(default_factory=list)

    def source(self, *, is_bounded: bool = False) -> GrowingSource:
        return RedisStreams(
            self.broker.url, tuple(self.names), schema=SCHEMA, is_bounded=is_bounded
        )

    def write(self, name: str, keys: list[int]) -> None:
        stream = f"{self.prefix}-{name}"
        if stream not in self.names:
            self.names.append(stream)
        for key in keys:
            self.broker.client().xadd(stream, {"other": "x", "key": key})

    def lose(self, name: str, count: int) -> None:
        client, stream = self.broker.client(), f"{self.prefix}-{name}"
        client.xtrim(stream, maxlen=client.xlen(stream) - count, approximate=False)


@dataclass(slots=True)
class KafkaPlace:
    """A name is a topic of one partition; a transaction's marker follows each record."""

    broker: KafkaBroker
    prefix: str
    is_log: bool = True
    topics: list[str] = field(default_factory=list)

    def source(self, *, is_bounded: bool = False) -> GrowingSource:
        address = KafkaAddress(self.broker.bootstrap_servers)
        return KafkaTopics(
            address, tuple(self.topics), format=JsonValues(SCHEMA), is_bounded=is_bounded
        )

    def write(self, name: str, keys: list[int]) -> None:
        topic = f"{self.prefix}-{name}"
        if topic not in self.topics:
            self.topics.append(topic)
            self.broker.create_topic(topic)
        self.broker.produce(topic, [json.dumps({"key": key}).encode() for key in keys])

    def lose(self, name: str, count: int) -> None:
        """Each record has a marker behind it; the marker of the last deleted record stays."""
        self.broker.delete_before(f"{self.prefix}-{name}", 2 * count - 1)


def rows_of(batches: Iterator[Batch], wanted: int) -> list[tuple[int, int | None]]:
    """Returns (key, offset) of the next `wanted` records, or of as many as the split has."""
    rows: list[tuple[int, int | None]] = []
    while len(rows) < wanted:
        batch = next(batches, None)
        if batch is None:
            break
        logged = isinstance(batch, LoggedRecords)
        keys = (batch.records if logged else batch).column("key").to_pylist()
        offsets = batch.offsets.tolist() if logged else [None] * len(keys)
        rows += list(zip(keys, offsets, strict=True))
    return rows[:wanted]


def behind(split: SplitProgress, rows: list[tuple[int, int | None]]) -> SplitProgress:
    """Returns the position of the split after these records."""
    offset = split.offset + len(rows)
    if rows and rows[-1][1] is not None:
        offset = rows[-1][1] + 1
    return SplitProgress(
        split.name, offset, split.passed + len(rows), split.end_offset, split.version
    )
