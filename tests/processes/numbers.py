"""The flow that process tests run: numbers with event time, counted per key and window.

The expected output follows from the parameters alone, so every test can compute it.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import redis

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.run import Parameter
from pipelines.stream import Environment, Flow, Pipeline, count, sum, tumbling

KEYS = 7
TOTAL = 7_200  # numbers, unless a run is asked for fewer
STEP_MS = 1_000  # of event time from one number to the next
WINDOW_MS = 60_000
SPLIT_RECORDS = 1_000
BATCH_RECORDS = 100
HELD_FROM = 0.75
HELD_AT = 3_700
"""A number in the middle of a window: when all numbers before it are read, state holds some."""
POLL_S = 0.002
SCHEMA = pa.schema(
    [("number", pa.int64()), ("key", pa.int64()), ("at", pa.timestamp("ms", tz="UTC"))]
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """0, 1, 2, ..., a thousand per split. Implements `Source`.

    Until the file `hurry` exists, there is nothing to read for `pause_s` before each batch, and
    nothing at all from the number `held_at` on. So a test has all the time it needs on the slowest
    machine, and does not wait afterwards. A source that pauses is held at its last quarter unless
    `held_at` is set.
    """

    total: int
    _: KW_ONLY
    pause_s: float = 0.0
    hurry: str = ""
    held_at: int | None = None

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
        return f"numbers-{index}" if index * SPLIT_RECORDS < self.total else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        end = min((index + 1) * SPLIT_RECORDS, self.total)
        for start in range(index * SPLIT_RECORDS + offset, end, BATCH_RECORDS):
            yield from self._nothing_yet(start)
            yield _batch(np.arange(start, min(start + BATCH_RECORDS, end)))

    def _nothing_yet(self, start: int) -> Iterator[pa.RecordBatch]:
        if not self.pause_s and self.held_at is None:
            return
        due_s = time.monotonic() + self.pause_s
        held_at = HELD_FROM * self.total if self.held_at is None else self.held_at
        is_held = start >= held_at
        while (is_held or time.monotonic() < due_s) and not self._is_hurried():
            time.sleep(POLL_S)
            yield _batch(np.arange(0))

    def _is_hurried(self) -> bool:
        return bool(self.hurry) and Path(self.hurry).exists()

    def event_time_ms(self, index: int, offset: int) -> int | None:
        number = index * SPLIT_RECORDS + offset
        return number * STEP_MS if number < self.total else None


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    pace = parameters["hours_per_s"]
    env = Environment(pace=float(pace) if pace else None)
    poison, outage = int(parameters["poison"]), parameters["outage"]

    def digest(batch: pa.RecordBatch) -> pa.RecordBatch:
        if outage and Path(outage).exists():
            raise redis.ConnectionError("Error 111 connecting to localhost:6379.")
        bad = pc.equal(batch.column("number"), poison)
        if pc.any(bad).as_py():
            raise ValueError(f"{poison} cannot be digested \0\udc80")  # what no store can hold
        return batch

    pause_s = int(parameters["pause_ms"]) / 1000
    held_at = parameters["held_at"]
    source = Numbers(
        int(parameters["total"]),
        pause_s=pause_s,
        hurry=parameters["hurry"],
        held_at=int(held_at) if held_at else None,
    )
    numbers = env.source(source, uid="numbers")
    digested = numbers.map_batches(digest, SCHEMA, uid="digest")
    totals = (
        digested.key_by("key")
        .window(tumbling(minutes=1))
        .aggregate(count=count(), total=sum("number"), uid="totals")
    )
    poison_total = int(parameters["poison_total"])

    def weigh(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.any(pc.equal(batch.column("total"), poison_total)).as_py():
            raise ValueError(f"{poison_total} is too heavy")
        return batch

    weighed = totals.map_batches(weigh, totals.schema, uid="weigh")
    weighed.sink(ExactlyOnceFiles(Path(parameters["output"]), pipeline="numbers"), uid="files")
    return env.build()


def expected(total: int) -> pd.DataFrame:
    numbers = pd.DataFrame({"number": np.arange(total)})
    numbers["key"] = numbers["number"] % KEYS
    numbers["window"] = numbers["number"] * STEP_MS // WINDOW_MS
    grouped = numbers.groupby(["window", "key"], as_index=False)
    return grouped.agg(count=("number", "size"), total=("number", "sum"))


def committed(output: Path) -> pd.DataFrame:
    """Returns the rows of all visible files, as a reader sees them, in the order of `expected`."""
    files = sorted(path for path in output.glob("*.parquet") if path.name[0] not in "._")
    if not files:
        return expected(0)
    frame = pd.concat([pq.read_table(path).to_pandas() for path in files])
    milliseconds = frame["window_start"].astype("datetime64[ms, UTC]").astype("int64")
    frame["window"] = milliseconds // WINDOW_MS
    columns = ["window", "key", "count", "total"]
    return frame[columns].sort_values(["window", "key"]).reset_index(drop=True)


def assert_exact(output: Path, total: int = TOTAL) -> None:
    """Asserts that every window is there once, and that no uncommitted file is left over."""
    left_over = [p.name for p in output.iterdir() if p.name.startswith((".p", ".i"))]
    assert left_over == []
    assert_rows_exact(output, total)


def assert_rows_exact(output: Path, total: int = TOTAL) -> None:
    """Allows files that a dead run prepared in the same output, since a restore may need them."""
    pd.testing.assert_frame_equal(committed(output), expected(total), check_dtype=False)


def _batch(numbers: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pa.RecordBatch:
    at = pa.array(numbers * STEP_MS).cast(SCHEMA.field("at").type)
    return pa.record_batch([pa.array(numbers), pa.array(numbers % KEYS), at], schema=SCHEMA)


FLOW = Flow(
    name="numbers",
    summary="Numbers counted per key and minute, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("total", str(TOTAL), "how many numbers there are"),
        Parameter("hours_per_s", "", "event-hours per second; empty: as fast as possible"),
        Parameter("pause_ms", "0", "how long there is nothing to read before each batch"),
        Parameter("held_at", "", "the number from which on there is nothing to read"),
        Parameter("hurry", "", "a file; once it exists, there is always something to read"),
        Parameter("poison", "-1", "the number that the user's function fails on"),
        Parameter("outage", "", "a file; while it exists, the service of that function is away"),
        Parameter("poison_total", "-1", "the total that a function behind the exchange fails on"),
    ),
    assemble=assemble,
)
