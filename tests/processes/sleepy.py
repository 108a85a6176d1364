"""A flow of two splits, one of which falls asleep until a file wakes it; their times overlap.

Even numbers come all the time. Odd ones fall silent after a few. When they wake, event time has
passed: a number is late if its window has fired, and is in its window otherwise.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.run import Parameter
from pipelines.stream import LATE, Environment, Flow, Pipeline, count, monotonous, sum, tumbling
from tests.processes.numbers import KEYS, SCHEMA, STEP_MS, WINDOW_MS

AWAKE_RECORDS = 40  # of the sleepy split, before it falls asleep
BATCH_RECORDS = 20
BATCH_S = 0.01
POLL_S = 0.002
IDLE_AFTER = timedelta(milliseconds=100)
WAKE = "wake"
NOTHING = pa.RecordBatch.from_pylist([], SCHEMA)


@dataclass(frozen=True, slots=True)
class EvenAndOdd:
    """Implements `Source`: the even numbers below `total`, and the odd ones."""

    total: int
    directory: Path
    concurrent_splits: int = 2

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def timestamp_column(self) -> str:
        return "at"

    @property
    def out_of_orderness_ms(self) -> int:
        return 0

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return ("even", "odd")[index] if index < 2 else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        numbers = np.arange(index, self.total, 2)
        for start in range(offset, len(numbers), BATCH_RECORDS):
            if index == 0:
                time.sleep(BATCH_S)
            while index == 1 and start >= AWAKE_RECORDS and not (self.directory / WAKE).exists():
                time.sleep(POLL_S)
                yield NOTHING
            yield batch_of(numbers[start : start + BATCH_RECORDS])

    def event_time_ms(self, index: int, offset: int) -> int | None:
        return None


def batch_of(numbers: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pa.RecordBatch:
    at = pa.array(numbers * STEP_MS).cast(SCHEMA.field("at").type)
    return pa.record_batch([pa.array(numbers), pa.array(numbers % KEYS), at], schema=SCHEMA)


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment()
    output = Path(parameters["output"])
    source = EvenAndOdd(int(parameters["total"]), Path(parameters["script"]))
    watermarks = monotonous().with_idleness(IDLE_AFTER)
    numbers = env.source(source, uid="numbers", watermarks=watermarks)
    minutes = (
        numbers.key_by("key")
        .window(tumbling(milliseconds=WINDOW_MS))
        .aggregate(n=count(), total=sum("number"), uid="minutes")
    )
    minutes.sink(ExactlyOnceFiles(output / "minutes", pipeline="sleepy"), uid="minute-files")
    late = minutes.side_output(LATE, uid="late")
    late.sink(ExactlyOnceFiles(output / "late", pipeline="sleepy"), uid="late-files")
    return env.build()


def committed(output: Path, name: str) -> pd.DataFrame:
    files = sorted(p for p in (output / name).glob("*.parquet") if p.name[0] not in "._")
    empty = pd.DataFrame({"window_start": [], "key": [], "number": [], "n": [], "total": []})
    return pd.concat([pq.read_table(path).to_pandas() for path in files]) if files else empty


FLOW = Flow(
    name="sleepy",
    summary="A split that falls silent and wakes again, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("script", None, "directory of the file that wakes it"),
        Parameter("total", "3000", "how many numbers there are"),
    ),
    assemble=assemble,
)
