"""A flow of a source and a sink with nothing in between, exactly once.

A seed determines the rows for PostgreSQL and Redis, so that you can compare it with a program that
writes the same rows in another way. The environment says where the servers are.
"""

import os
from collections.abc import Callable, Mapping

import pyarrow as pa

from pipelines.connectors import (
    Draws,
    ExactlyOnceKafka,
    KafkaAddress,
    KafkaTopics,
    PostgresInsert,
    RawValues,
    RedisHashes,
    SeededGenerator,
)
from pipelines.connectors.contract import Sink
from pipelines.connectors.source import AnySource
from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline

ADDRESS = "FTDASH_ENDS_ADDRESS"
SPLITS = 2
ROW = pa.schema([("key", pa.int64()), ("views", pa.int64()), ("text", pa.string())])
KEYS = ("key",)
KEYS_PER_SPLIT = 50_000
TEXTS = pa.array([f"{number:04}".ljust(84, "x") for number in range(1_000)])
"""Eight bytes of key, eight of views and a text: a row of 100 bytes."""


def rows(draws: Draws) -> list[pa.Array]:
    """Returns the columns of the rows; a key belongs to one split, and repeats."""
    keys = draws.offsets % KEYS_PER_SPLIT * SPLITS + draws.split
    texts = TEXTS.take(pa.array(draws.integers("text", 0, len(TEXTS))))
    return [pa.array(keys), pa.array(draws.integers("views", 0, 1 << 30)), texts]


def generated(records: int) -> SeededGenerator:
    return SeededGenerator(
        rows, schema=ROW, seed=1, splits=SPLITS, rows_per_split=records // SPLITS
    )


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment()
    address = os.environ[ADDRESS]
    source, sink = ENDS[parameters["to"]](address, parameters["source"], parameters["target"])
    env.source(source, uid="records").sink(sink, uid="output")
    return env.build()


def _kafka(address: str, source: str, target: str) -> tuple[AnySource, Sink]:
    kafka = KafkaAddress(address)
    topic = KafkaTopics(kafka, (source,), format=RawValues(), is_bounded=True)
    return topic, ExactlyOnceKafka(kafka, target, pipeline="ends", value="value")


def _postgres(address: str, source: str, target: str) -> tuple[AnySource, Sink]:
    return generated(int(source)), PostgresInsert(address, target, pipeline="ends")


def _redis(address: str, source: str, target: str) -> tuple[AnySource, Sink]:
    return generated(int(source)), RedisHashes(address, target, KEYS, pipeline="ends")


ENDS: dict[str, Callable[[str, str, str], tuple[AnySource, Sink]]] = {
    "kafka": _kafka,
    "postgres": _postgres,
    "redis": _redis,
}

FLOW = Flow(
    name="ends",
    summary="Records from one end to the other, for measuring sources and sinks.",
    parameters=(
        Parameter("to", None, "kafka, postgres or redis"),
        Parameter("source", None, "topic to read; or how many rows to make"),
        Parameter("target", None, "topic, table or prefix to write to"),
    ),
    assemble=assemble,
)
