"""A flow of small records in small batches, before a reader that takes its time for each of them.

It never ends. The source records how many records it has emitted and how many were in flight at
most, and the reader how many it has handled. So a test can count instead of measuring time.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.connectors import BlackHole
from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline

READER = "reader"
SPLITS = 2
BATCH_RECORDS = 20
CONTENT = "x" * 84  # about 100 bytes a record, with the number and the offset of the text
SCHEMA = pa.schema([("number", pa.int64()), ("content", pa.string())])
EMITTED, HANDLED, MOST = "emitted", "handled", "most-in-flight"


@dataclass(frozen=True, slots=True)
class SmallRecords:
    """Splits with 0, 2, 4, ... and 1, 3, 5, .... Implements `Source`."""

    counts: Path
    concurrent_splits: int = SPLITS

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def timestamp_column(self) -> str | None:
        return None

    @property
    def out_of_orderness_ms(self) -> int:
        return 0

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return f"records-{index}" if index < SPLITS else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        most = 0
        while True:
            numbers = np.arange(offset, offset + BATCH_RECORDS) * SPLITS + index
            offset += BATCH_RECORDS
            handled = total(self.counts, HANDLED)  # first, so that no record in flight is missed
            _add(self.counts / f"{EMITTED}-{index}", BATCH_RECORDS)
            in_flight = total(self.counts, EMITTED) - handled
            _add(self.counts / f"{MOST}-{index}", max(0, in_flight - most))
            most = max(most, in_flight)
            content = pa.array([CONTENT] * BATCH_RECORDS)
            yield pa.record_batch([pa.array(numbers), content], schema=SCHEMA)

    def event_time_ms(self, index: int, offset: int) -> int | None:
        return None


def total(counts: Path, what: str) -> int:
    """Sums over all that count it. A count is the size of a file, so one write adds to it."""
    return sum(each.stat().st_size for each in counts.glob(f"{what}-*"))


def most_in_flight(counts: Path) -> int:
    return max((each.stat().st_size for each in counts.glob(f"{MOST}-*")), default=0)


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    counts, slow_s = Path(parameters["counts"]), float(parameters["slow_us"]) / 1e6

    def read(batch: pa.RecordBatch) -> pa.RecordBatch:
        for _ in range(batch.num_rows):
            time.sleep(slow_s)
            _add(counts / f"{HANDLED}-{os.getpid()}", 1)
        return batch

    env = Environment()
    records = env.source(SmallRecords(counts), uid="records")
    records.rebalance().map_batches(read, SCHEMA, uid=READER).sink(BlackHole(), uid="nowhere")
    return env.build()


def _add(count: Path, records: int) -> None:
    with count.open("ab") as file:
        file.write(b"." * records)


FLOW = Flow(
    name="small_records",
    summary="Small records before a slow reader, for tests.",
    parameters=(
        Parameter("output", "", "not used"),
        Parameter("counts", None, "directory of what is counted"),
        Parameter("slow_us", "2000", "how long the reader takes for a record, at least"),
    ),
    assemble=assemble,
)
