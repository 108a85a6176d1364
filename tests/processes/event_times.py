"""A flow with every kind of window, join and edge; its output follows from its parameters alone.

Two sources emit numbers with disordered event times, and their splits overlap in time. A straggler
may come after its window has closed; then it must be in the late output, and only there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.run import Parameter
from pipelines.stream import (
    LATE,
    Environment,
    Flow,
    Pipeline,
    Stream,
    bounded_out_of_orderness,
    count,
    session,
    sliding,
    sum,
    tumbling,
)

KEYS = 7
STEP_MS = 1_000  # of event time from one number to the next
DISORDER_MS = 20_000
SPLITS = 3  # each holds every third number, so all of them overlap in time
BATCH_RECORDS = 40
STRAGGLER_EVERY = 97
STRAGGLER_MS = 400_000  # behind its neighbours
GAP_MS, SESSION_NUMBERS = 30_000, 60
TIME = pa.timestamp("ms", tz="UTC")
LEFT = pa.schema([("number", pa.int64()), ("key", pa.int64()), ("visit", pa.int64()), ("at", TIME)])
RIGHT = pa.schema([("key", pa.int64()), ("other", pa.int64()), ("seen", TIME)])
INTERVAL_MS = (-5_000, 10_000)
SINKS = ("sliding", "sessions", "pairs", "table", "minutes", "late")

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Disordered:
    """Implements `Source`, with splits that are read side by side."""

    total: int
    is_left: bool
    concurrent_splits: int = SPLITS

    @property
    def schema(self) -> pa.Schema:
        return LEFT if self.is_left else RIGHT

    @property
    def timestamp_column(self) -> str:
        return "at" if self.is_left else "seen"

    @property
    def out_of_orderness_ms(self) -> int:
        return 0  # wrong on purpose; the pipeline sets the right value

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return f"numbers-{index}" if index < SPLITS else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        numbers = np.arange(index, self.total, SPLITS)
        for start in range(offset, len(numbers), BATCH_RECORDS):
            chosen = numbers[start : start + BATCH_RECORDS]
            yield left_batch(chosen) if self.is_left else right_batch(chosen)

    def event_time_ms(self, index: int, offset: int) -> int | None:
        number = index + offset * SPLITS
        return number * STEP_MS if number < self.total else None


def left_times(numbers: Numbers) -> Numbers:
    jitter = numbers * 7_919 % DISORDER_MS
    return numbers * STEP_MS + jitter - STRAGGLER_MS * (numbers % STRAGGLER_EVERY == 50)


def right_times(numbers: Numbers) -> Numbers:
    return numbers * STEP_MS + numbers * 104_729 % DISORDER_MS


def visits(numbers: Numbers) -> Numbers:
    """A visit is one session: neighbouring numbers with no gap as long as the session gap."""
    return numbers // SESSION_NUMBERS


def left_batch(numbers: Numbers) -> pa.RecordBatch:
    at = pa.array(left_times(numbers)).cast(TIME)
    columns = [pa.array(numbers), pa.array(numbers % KEYS), pa.array(visits(numbers)), at]
    return pa.record_batch(columns, schema=LEFT)


def right_batch(numbers: Numbers) -> pa.RecordBatch:
    seen = pa.array(right_times(numbers)).cast(TIME)
    return pa.record_batch([pa.array(numbers % KEYS), pa.array(numbers), seen], schema=RIGHT)


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    pace, total = parameters["hours_per_s"], int(parameters["total"])
    output = Path(parameters["output"])
    env = Environment(pace=float(pace) if pace else None)
    bounded = bounded_out_of_orderness(timedelta(milliseconds=2 * DISORDER_MS))
    patient = bounded_out_of_orderness(timedelta(milliseconds=STRAGGLER_MS + 2 * DISORDER_MS))
    first = env.source(Disordered(total, True), uid="first", watermarks=patient)
    again = env.source(Disordered(total, True), uid="again", watermarks=patient)
    hasty = env.source(Disordered(total, True), uid="hasty", watermarks=bounded)
    right = env.source(Disordered(total, False), uid="right", watermarks=bounded)

    both = first.union(again, uid="both").rebalance()
    spread = both.map_batches(lambda batch: batch, LEFT, uid="spread")
    slid = (
        spread.key_by("key")
        .window(sliding(timedelta(minutes=2), every=timedelta(minutes=1)))
        .aggregate(n=count(), total=sum("number"), uid="slid")
    )
    sessions = (
        first.filter(lambda batch: is_no_straggler(batch), uid="orderly")
        .key_by("visit")
        .window(session(milliseconds=GAP_MS))
        .aggregate(n=count(), total=sum("number"), uid="visits")
    )
    lower, upper = (timedelta(milliseconds=bound) for bound in INTERVAL_MS)
    pairs = first.interval_join(right, on=["key"], lower=lower, upper=upper, uid="near")
    few = first.filter(lambda batch: is_early(batch, "number"), uid="few")
    few_right = right.filter(lambda batch: is_early(batch, "other"), uid="few-right")
    table = few.join(few_right, on=["key"], how="full", uid="ever")
    minutes = (
        hasty.key_by("key")
        .window(tumbling(minutes=1))
        .aggregate(n=count(), total=sum("number"), uid="minutes")
    )
    late = minutes.side_output(LATE, uid="late").rebalance()
    for name, stream in zip(SINKS, (slid, sessions, pairs, table, minutes, late), strict=True):
        write(stream, output, name)
    return env.build()


def is_no_straggler(batch: pa.RecordBatch) -> pa.BooleanArray:
    numbers = batch.column("number").to_numpy()
    return pa.array(numbers % STRAGGLER_EVERY != 50)


def is_early(batch: pa.RecordBatch, column: str) -> pa.BooleanArray:
    """Keeps few enough rows to join all with all; no right number has the key 0."""
    numbers = batch.column(column).to_numpy()
    return pa.array((numbers < 300) & ((numbers % KEYS != 0) | (column == "number")))


def write(stream: Stream, output: Path, name: str) -> None:
    stream.sink(ExactlyOnceFiles(output / name, pipeline="event_times"), uid=f"{name}-files")


def committed(output: Path, name: str) -> pd.DataFrame:
    files = sorted(p for p in (output / name).glob("*.parquet") if p.name[0] not in "._")
    frame = pd.concat([pq.read_table(path).to_pandas() for path in files])
    for column in frame.select_dtypes(include=["datetimetz"]):
        frame[column] = frame[column].astype("datetime64[ms, UTC]").astype("int64")
    return frame


def expected_sliding(total: int) -> pd.DataFrame:
    """Each number counts twice, because both sources emit it, in each of its two windows."""
    numbers = np.repeat(np.arange(total), 2)
    minute = left_times(numbers) // 60_000 * 60_000
    frames = [
        pd.DataFrame({"key": numbers % KEYS, "window_start": minute - back, "number": numbers})
        for back in (0, 60_000)
    ]
    grouped = pd.concat(frames).groupby(["window_start", "key"], as_index=False)
    return grouped.agg(n=("number", "size"), total=("number", "sum"))


def expected_sessions(total: int) -> pd.DataFrame:
    numbers = np.arange(total)
    numbers = numbers[numbers % STRAGGLER_EVERY != 50]
    frame = pd.DataFrame({"visit": visits(numbers), "number": numbers, "at": left_times(numbers)})
    grouped = frame.groupby("visit", as_index=False).agg(
        window_start=("at", "min"),
        last=("at", "max"),
        n=("number", "size"),
        total=("number", "sum"),
    )
    grouped["window_end"] = grouped.pop("last") + GAP_MS
    return grouped


def expected_pairs(total: int) -> set[tuple[int, int]]:
    numbers = np.arange(total)
    times, others = left_times(numbers), right_times(numbers)
    reach = (STRAGGLER_MS + 3 * DISORDER_MS) // STEP_MS
    pairs = set()
    for number in numbers.tolist():
        near = numbers[max(0, number - reach) : number + reach]
        apart = others[near] - times[number]
        is_pair = (apart >= INTERVAL_MS[0]) & (apart <= INTERVAL_MS[1])
        is_pair &= near % KEYS == number % KEYS
        pairs |= {(number, other) for other in near[is_pair].tolist()}
    return pairs


FLOW = Flow(
    name="event_times",
    summary="Windows and joins of every kind, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("total", "3600", "how many numbers there are"),
        Parameter("hours_per_s", "", "event-hours per second; empty: as fast as possible"),
    ),
    assemble=assemble,
)
