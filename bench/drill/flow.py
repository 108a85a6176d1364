"""The pipeline of the drill: it counts endless records by key, and has levers that break it.

A lever is a file that an incident puts into the pipeline's directory while the pipeline runs.
Records come at a fixed rate and each costs a fixed time, so that the pipeline is under load without
using the processor.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors import (
    JSON_LINES,
    ExactlyOnceFiles,
    ExactlyOnceKafka,
    KafkaAddress,
    PostgresInsert,
    RedisStreams,
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
    ValueStateDescriptor,
)

REDIS, POSTGRES, KAFKA = "FTDASH_DRILL_REDIS", "FTDASH_DRILL_POSTGRES", "FTDASH_DRILL_KAFKA"
"""Environment variables with the addresses of the servers that incidents stop."""

RECORDS = pa.schema([("n", pa.int64()), ("key", pa.int64())])
COUNTED = pa.schema([("n", pa.int64()), ("key", pa.int64()), ("nth", pa.int64())])
SPLITS = 2
BATCH_RECORDS = 10
BATCH_S = 0.05  # so 400 records a second
COST_S = 0.003  # of a record: it takes 60 % of the time of two subtasks, or more than all of one
KEYS = 64
HOT_KEY = 7
TRANSACTION_TIMEOUT = timedelta(seconds=30)
LOOK_EVERY = timedelta(seconds=2)  # for new files: a page cannot name one that no source has seen

POISON, STUCK, SKEWED, AWAY = "poison", "stuck", "skewed", "away"
UID, CLOCK = "uid", "clock"
"""Levers. `UID` holds the present uid of the counting operator, `CLOCK` the seconds by which the
machine's clock is ahead."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """Implements `Source`: endless numbers, in splits that are read in parallel."""

    levers: Path
    concurrent_splits: int = 1

    @property
    def schema(self) -> pa.Schema:
        return RECORDS

    @property
    def timestamp_column(self) -> None:
        return None

    @property
    def out_of_orderness_ms(self) -> int:
        return 0

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return f"ticks-{index}" if index < SPLITS else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        while True:
            time.sleep(BATCH_S)
            numbers = np.arange(offset, offset + BATCH_RECORDS)
            is_skewed = (self.levers / SKEWED).exists()
            keys = np.full(BATCH_RECORDS, HOT_KEY) if is_skewed else numbers % KEYS
            yield pa.record_batch([pa.array(numbers), pa.array(keys)], schema=RECORDS)
            offset += BATCH_RECORDS

    def event_time_ms(self, index: int, offset: int) -> int | None:
        return None


class Count(KeyedProcessFunction):
    """Numbers the records of each key, and takes a fixed time for each record."""

    def __init__(self, cost_ms: float) -> None:
        self._cost_s = cost_ms / 1000

    def open(self, runtime: RuntimeContext) -> None:
        self._count = runtime.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        time.sleep(self._cost_s)
        nth = (self._count.value() or 0) + 1
        self._count.update(nth)
        yield {"n": row["n"], "key": row["key"], "nth": nth}


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    place = Path(parameters["place"])
    if parameters["steps-clock"] == "true":
        follow_clock(place / CLOCK)
    cost_ms = float(parameters["cost-ms"])
    env = Environment()

    def rate(batch: pa.RecordBatch) -> pa.RecordBatch:
        while (place / STUCK).exists():
            time.sleep(BATCH_S)
        if (place / AWAY).exists():
            raise ConnectionRefusedError("Error 111 connecting to rates.example:6379.")
        if (place / POISON).exists() and pc.any(pc.equal(batch.column("key"), HOT_KEY)).as_py():
            raise ZeroDivisionError("the rate of key 7 is zero")
        return batch

    records = env.source(_source(parameters["source"], place), uid="records")
    rated = records.map_batches(rate, RECORDS, uid="rate")
    counted = rated.key_by("key").process(Count(cost_ms), COUNTED, uid=_uid(place))
    counted.sink(_sink(parameters["sink"], place), uid="results")
    return env.build()


def follow_clock(lever: Path) -> None:
    """From now on, sets the clock of this process ahead by the lever's seconds, if it exists.

    The monotonic clock does not change, as when a machine's clock is set.
    """
    now, now_ns = time.time, time.time_ns

    def ahead_s() -> int:
        return int(lever.read_text()) if lever.exists() else 0

    time.time = lambda: now() + ahead_s()
    time.time_ns = lambda: now_ns() + ahead_s() * 1_000_000_000


def _uid(place: Path) -> str:
    """Returns the counting operator's uid, the part of the code that an incident edits."""
    lever = place / UID
    return lever.read_text() if lever.exists() else "count"


def _source(kind: str, place: Path) -> object:
    match kind:
        case "files":
            return json_lines_directory(place / "input", schema=RECORDS, look_every=LOOK_EVERY)
        case "redis":
            return RedisStreams(os.environ[REDIS], (place.name,), schema=RECORDS)
        case _:
            return Ticks(place)


def _sink(kind: str, place: Path) -> object:
    match kind:
        case "postgres":
            return PostgresInsert(os.environ[POSTGRES], "results", pipeline=place.name)
        case "kafka":
            address = KafkaAddress(os.environ[KAFKA])
            return ExactlyOnceKafka(
                address, place.name, pipeline=place.name, transaction_timeout=TRANSACTION_TIMEOUT
            )
        case _:
            return ExactlyOnceFiles(place / "output", pipeline=place.name, format=JSON_LINES)


FLOW = Flow(
    name="drill",
    summary="Records without an end, counted by key, for the drill.",
    parameters=(
        Parameter("place", None, "directory of its levers, its input and its output"),
        Parameter("source", "ticks", "ticks, files or redis"),
        Parameter("sink", "files", "files, postgres or kafka"),
        Parameter("cost-ms", "1.5", "of a record; a subtask gets 200 a second"),
        Parameter("steps-clock", "false", "true: a lever sets the clock of its processes"),
    ),
    assemble=assemble,
)
