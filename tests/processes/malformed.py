"""A flow over a log with records that its parser cannot read, and a flow with a better parser.

The better one takes values as they are and extracts any number in them.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from pipelines.connectors import (
    JSON_LINES,
    ExactlyOnceFiles,
    GrowingSource,
    JsonValues,
    KafkaAddress,
    KafkaTopics,
    RawValues,
    RedisStreams,
)
from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline

SERVER = "MALFORMED_SERVER"
NAME = "malformed"
NUMBERS = pa.schema([("n", pa.int64())])
EVENTS = pa.schema([("n", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
AS_TEXT = pa.schema([("n", pa.string()), ("at", pa.string())])


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    is_fixed = parameters["fixed"] == "true"
    env = Environment()
    events = env.source(_SOURCES[parameters["system"]](parameters["log"], is_fixed), uid="events")
    numbers = events.map_batches(_found if is_fixed else _plain, NUMBERS, uid="numbers")
    output = ExactlyOnceFiles(Path(parameters["output"]), pipeline=NAME, format=JSON_LINES)
    numbers.sink(output, uid="files")
    return env.build()


def _kafka(log: str, is_fixed: bool) -> GrowingSource:
    address = KafkaAddress(os.environ[SERVER])
    if is_fixed:
        return KafkaTopics(address, (log,), format=RawValues())
    return KafkaTopics(address, (log,), format=JsonValues(EVENTS), timestamp_column="at")


def _redis(log: str, is_fixed: bool) -> GrowingSource:
    if is_fixed:
        return RedisStreams(os.environ[SERVER], (log,), schema=AS_TEXT)
    return RedisStreams(os.environ[SERVER], (log,), schema=EVENTS, timestamp_column="at")


_SOURCES = {"kafka": _kafka, "redis": _redis}


def _plain(events: pa.RecordBatch) -> pa.RecordBatch:
    return events.select(["n"])


def _found(events: pa.RecordBatch) -> pa.RecordBatch:
    texts = [json.dumps(row, default=bytes.decode) for row in events.to_pylist()]
    digits = [re.search(r"\d+", text) for text in texts]
    numbers = [None if found is None else int(found[0]) for found in digits]
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=NUMBERS)


def numbers_in(output: Path) -> list[int]:
    files = sorted(output.glob("part-*.jsonl"))
    return sorted(json.loads(line)["n"] for f in files for line in f.read_text().splitlines())


FLOW = Flow(
    name=NAME,
    summary="A log with records that cannot be read, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("system", None, "kafka or redis"),
        Parameter("log", None, "the topic or stream"),
        Parameter("fixed", "false", "true: with the parser that reads them all"),
    ),
    assemble=assemble,
)
