"""The pipelines of the soak, one for each `kind`; together they have all kinds of ends and state.

The right output is in `answers`, which does not use this module.
"""

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.drill.flow import CLOCK, KAFKA, POSTGRES, REDIS, follow_clock
from pipelines.connectors import (
    JSON_LINES,
    ExactlyOnceFiles,
    ExactlyOnceKafka,
    GrowingDirectory,
    JsonValues,
    KafkaAddress,
    KafkaTopics,
    PostgresInsert,
    PostgresTwoPhase,
    RedisStreams,
    WriteAheadKafka,
    json_lines_directory,
)
from pipelines.operators.rows import Row
from pipelines.stream import (
    Environment,
    Flow,
    KeyedProcessFunction,
    Parameter,
    Pipeline,
    RowContext,
    RuntimeContext,
    Stream,
    ValueStateDescriptor,
    count,
    sum,
    tumbling,
)

REDIS_POSTGRES, WINDOWS_FILES = "redis-postgres", "windows-files"
FILES_FILES, COUNTS_POSTGRES = "files-files", "counts-postgres"
DOCUMENTS_FILES = "documents-files"
KAFKA_POSTGRES, REDIS_KAFKA = "kafka-postgres", "redis-kafka"
REDIS_LOG_KAFKA = "redis-log-kafka"
TO_KAFKA = (REDIS_KAFKA, REDIS_LOG_KAFKA)

PARALLEL = (REDIS_POSTGRES, *TO_KAFKA)
"""Kinds that read two streams."""

VERSION = "version"
OF_A_RUN = "FTDASH_RUN_ID"
"""A variable that `ftdash.supervision.launcher` sets for drivers and slots. It is repeated here,
because slots do not load Django."""

TIME = pa.timestamp("ms", tz="UTC")
NUMBERS = pa.schema([("n", pa.int64())])
TIMED = pa.schema([("n", pa.int64()), ("at", TIME)])
PRICED = pa.schema([("n", pa.int64()), ("price", pa.int64())])
AMOUNTS = pa.schema([("n", pa.int64()), ("amount", pa.int64())])
COUNTS = pa.schema([("n", pa.int64()), ("nth", pa.int64())])
REPLACED = pa.schema([("n", pa.int64()), ("before", pa.int64())])
KEYED = pa.schema([*TIMED, ("key", pa.int64()), ("amount", pa.int64())])
OTHERS = pa.schema([*TIMED, ("price", pa.int64())])
TOTALS = pa.schema([(name, pa.int64()) for name in ("start_ms", "key", "pairs", "total")])
WINDOW = timedelta(seconds=1)
LOOK_EVERY = timedelta(seconds=1)
TRANSACTION_TIMEOUT = timedelta(minutes=10)  # longer than any recovery here
SENDING_TIMEOUT = timedelta(seconds=5)  # shorter than many outages, which the log survives
PRIME, KEYS, VISITS, PAD_BYTES = 1_000_003, 4, 5, 4096
DOCUMENTS, DOCUMENT_BYTES = 16_384, 65_536


def streams_of(name: str, kind: str) -> tuple[str, ...]:
    """Returns one stream if the order of numbers counts: of two readers, one could be ahead."""
    return (f"{name}-0", f"{name}-1") if kind in PARALLEL else (f"{name}-0",)


def with_amount(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = batch.column("n")
    squares = pc.add(pc.multiply(numbers, numbers), 7)
    return pa.record_batch([numbers, _modulo(squares, PRIME)], schema=AMOUNTS)


def keyed(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = batch.column("n")
    amounts = with_amount(batch).column("amount")
    columns = [numbers, batch.column("at"), _modulo(numbers, KEYS), amounts]
    return pa.record_batch(columns, schema=KEYED)


def with_price(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = batch.column("n")
    prices = _modulo(pc.add(pc.multiply(numbers, 31), 11), PRIME)
    return pa.record_batch([numbers, batch.column("at"), prices], schema=OTHERS)


def joined_totals(batch: pa.RecordBatch) -> pa.RecordBatch:
    starts = batch.column("window_start").cast(pa.int64())
    sums = pc.add(batch.column("amounts"), batch.column("prices"))
    columns = [starts, batch.column("key"), batch.column("pairs"), sums]
    return pa.record_batch([each.cast(pa.int64()) for each in columns], schema=TOTALS)


def _modulo(values: pa.Array, divisor: int) -> pa.Array:
    return pc.subtract(values, pc.multiply(pc.divide(values, divisor), divisor))


class Count(KeyedProcessFunction):
    """Numbers the visits of each key, and keeps some kilobytes for each key for good."""

    def open(self, runtime: RuntimeContext) -> None:
        self._count = runtime.get_state(ValueStateDescriptor("count", pa.int64()))
        self._pad = runtime.get_state(ValueStateDescriptor("pad", pa.string()))

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        nth = (self._count.value() or 0) + 1
        self._count.update(nth)
        self._pad.update(f"{row['n']} " * (PAD_BYTES // 8))
        yield {"n": row["n"], "nth": nth}


class Replace(KeyedProcessFunction):
    """Keeps a document for each key, a gigabyte in all, and replaces it at each visit."""

    def open(self, runtime: RuntimeContext) -> None:
        self._document = runtime.get_state(ValueStateDescriptor("document", pa.binary()))

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        before = self._document.value()
        # Random bytes, because compression would make a few megabytes of anything else.
        self._document.update(Random(row["n"]).randbytes(DOCUMENT_BYTES))
        yield {"n": row["n"], "before": 0 if before is None else zlib.crc32(before)}


@dataclass(frozen=True, slots=True)
class Code:
    """One of the two versions of the code.

    Their sources have different uids, so a change of the code has to map positions. The second
    version has one more operator for each source.
    """

    version: int

    @property
    def other(self) -> "Code":
        return Code(3 - self.version)

    def source(self, env: Environment, source: Any, uid: str) -> Stream:
        stream = env.source(source, uid=self.uid(uid))
        if self.version == 1:
            return stream
        return stream.map_batches(lambda batch: batch, stream.schema, uid=f"same-{uid}")

    def uid(self, source: str) -> str:
        return source if self.version == 1 else f"{source}-{self.version}"

    def renamed_to(self, other: "Code", kind: str) -> dict[str, str]:
        return {self.uid(uid): other.uid(uid) for uid in SOURCES[kind]}


def redis_postgres(env: Environment, name: str, place: Path, code: Code) -> None:
    sink = PostgresTwoPhase(os.environ[POSTGRES], table_of(name), pipeline=name)
    _amounts(env, name, REDIS_POSTGRES, code).sink(sink, uid="rows")


def _amounts(env: Environment, name: str, kind: str, code: Code) -> Stream:
    numbers = code.source(env, _redis(name, kind, NUMBERS), "numbers")
    return numbers.map_batches(with_amount, AMOUNTS, uid="amounts")


def windows_files(env: Environment, name: str, place: Path, code: Code) -> None:
    """Both sides of the join come from one reader, so neither is late for the other."""
    numbers = code.source(env, _redis(name, WINDOWS_FILES, TIMED, timestamp_column="at"), "numbers")
    left = numbers.map_batches(keyed, KEYED, uid="left")
    right = numbers.map_batches(with_price, OTHERS, uid="right")
    window = tumbling(WINDOW)
    pairs = left.join(right, on=["n"], window=window, suffixes=("", "_right"), uid="pairs")
    totals = (
        pairs.key_by("key")
        .window(window)
        .aggregate(amounts=sum("amount"), prices=sum("price"), pairs=count(), uid="totals")
    )
    plain = totals.map_batches(joined_totals, TOTALS, uid="plain")
    plain.sink(ExactlyOnceFiles(place / "output", pipeline=name, format=JSON_LINES), uid="files")


def files_files(env: Environment, name: str, place: Path, code: Code) -> None:
    left = code.source(env, _files(place / "left", NUMBERS), "left")
    right = code.source(env, _files(place / "right", PRICED), "right")
    amounts = left.map_batches(with_amount, AMOUNTS, uid="amounts")
    pairs = amounts.join(right, on=["n"], uid="pairs")
    pairs.sink(ExactlyOnceFiles(place / "output", pipeline=name, format=JSON_LINES), uid="files")


def counts_postgres(env: Environment, name: str, place: Path, code: Code) -> None:
    numbers = code.source(env, _redis(name, COUNTS_POSTGRES, NUMBERS), "numbers")
    visits = _visits(numbers, lambda number: pc.divide(number, VISITS))
    counted = visits.key_by("key").process(Count(), COUNTS, uid="count")
    counted.sink(PostgresInsert(os.environ[POSTGRES], table_of(name), pipeline=name), uid="rows")


def documents_files(env: Environment, name: str, place: Path, code: Code) -> None:
    numbers = code.source(env, _redis(name, DOCUMENTS_FILES, NUMBERS), "numbers")
    visits = _visits(numbers, lambda number: _modulo(number, DOCUMENTS))
    replaced = visits.key_by("key").process(Replace(), REPLACED, uid="documents")
    sink = ExactlyOnceFiles(place / "output", pipeline=name, format=JSON_LINES)
    replaced.sink(sink, uid="files")


def _visits(numbers: Stream, key_of: Callable[[pa.Array], pa.Array]) -> Stream:
    def keyed_by_visit(batch: pa.RecordBatch) -> pa.RecordBatch:
        number = batch.column("n")
        return pa.record_batch([number, key_of(number)], names=["n", "key"])

    schema = pa.schema([*NUMBERS, ("key", pa.int64())])
    return numbers.map_batches(keyed_by_visit, schema, uid="keys")


def kafka_postgres(env: Environment, name: str, place: Path, code: Code) -> None:
    address = KafkaAddress(os.environ[KAFKA])
    source = KafkaTopics(address, (name,), format=JsonValues(NUMBERS), look_every=LOOK_EVERY)
    amounts = code.source(env, source, "numbers").map_batches(with_amount, AMOUNTS, uid="amounts")
    amounts.sink(PostgresInsert(os.environ[POSTGRES], table_of(name), pipeline=name), uid="rows")


def redis_kafka(env: Environment, name: str, place: Path, code: Code) -> None:
    address, timeout = KafkaAddress(os.environ[KAFKA]), TRANSACTION_TIMEOUT
    sink = ExactlyOnceKafka(address, name, pipeline=name, transaction_timeout=timeout)
    _amounts(env, name, REDIS_KAFKA, code).sink(sink, uid="records")


def redis_log_kafka(env: Environment, name: str, place: Path, code: Code) -> None:
    address, timeout = KafkaAddress(os.environ[KAFKA]), SENDING_TIMEOUT
    sink = WriteAheadKafka(address, name, pipeline=name, transaction_timeout=timeout)
    _amounts(env, name, REDIS_LOG_KAFKA, code).sink(sink, uid="records")


def table_of(name: str) -> str:
    return name.replace("-", "_")


def _redis(
    name: str, kind: str, schema: pa.Schema, timestamp_column: str | None = None
) -> RedisStreams:
    streams = streams_of(name, kind)
    url = os.environ[REDIS]
    return RedisStreams(url, streams, schema=schema, timestamp_column=timestamp_column)


def _files(directory: Path, schema: pa.Schema) -> GrowingDirectory:
    return json_lines_directory(directory, schema=schema, look_every=LOOK_EVERY)


Assembled = Callable[[Environment, str, Path, Code], None]

KINDS: Mapping[str, Assembled] = {
    REDIS_POSTGRES: redis_postgres,
    WINDOWS_FILES: windows_files,
    FILES_FILES: files_files,
    COUNTS_POSTGRES: counts_postgres,
    DOCUMENTS_FILES: documents_files,
    KAFKA_POSTGRES: kafka_postgres,
    REDIS_KAFKA: redis_kafka,
    REDIS_LOG_KAFKA: redis_log_kafka,
}
SOURCES = dict.fromkeys(KINDS, ("numbers",)) | {FILES_FILES: ("left", "right")}


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    place = Path(parameters["place"])
    if OF_A_RUN in os.environ:  # or else the control plane would follow the clock when it checks
        _follow_clock_once(place / CLOCK)
    env = Environment()
    KINDS[parameters["kind"]](env, place.name, place, Code(int(parameters[VERSION])))
    return env.build()


@cache
def _follow_clock_once(lever: Path) -> None:
    follow_clock(lever)


FLOW = Flow(
    name="soak",
    summary="Numbers from one kind of end to another, for the soak.",
    parameters=(
        Parameter("kind", None, ", ".join(KINDS)),
        Parameter("place", None, "directory of its input and its output, named as the pipeline"),
        Parameter(VERSION, "1", "1 or 2: of the code"),
    ),
    assemble=assemble,
)
