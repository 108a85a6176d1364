"""The flow that tests of process functions run: a timer releases the numbers gathered so far.

By row, it has a list, a map by minute, an event-time timer per key and minute, and one
processing-time timer per key. Behind it, by batch, is the running total of each key. The output
follows from the parameters alone; of the processing-time timers, only that each fires once.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.run import Parameter
from pipelines.operators.rows import Row
from pipelines.stream import (
    BatchProcessFunction,
    Environment,
    Flow,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Pipeline,
    ProcessContext,
    ReducingStateDescriptor,
    RowContext,
    RuntimeContext,
    SideOutput,
    TimeDomain,
    ValueStateDescriptor,
)
from tests.processes.numbers import KEYS, STEP_MS, WINDOW_MS, Numbers

MINUTES = pa.schema(
    [("key", pa.int64()), ("window", pa.int64()), ("total", pa.int64()), ("odd", pa.int64())]
)
TOTALS = MINUTES.append(pa.field("running", pa.int64()))
REMINDERS = pa.schema([("key", pa.int64())])
REMIND_AFTER_MS = 500


class Minutes(KeyedProcessFunction):
    side_outputs = {"reminders": SideOutput(REMINDERS, None)}  # noqa: RUF012

    def open(self, runtime: RuntimeContext) -> None:
        self._numbers = runtime.get_list_state(ListStateDescriptor("numbers", pa.int64()))
        self._odd = runtime.get_map_state(MapStateDescriptor("odd", pa.int64(), pa.int64()))
        self._is_reminded = runtime.get_state(ValueStateDescriptor("is_reminded", pa.bool_()))
        self._rows = runtime.metrics.counter("rows")

    def process_element(self, row: Row, context: RowContext) -> None:
        self._rows.inc()
        timers = context.timer_service()
        number, window = row["number"], window_of(row["number"])
        if not self._odd.contains(window):  # only once: a lost timer is never registered again
            timers.register_event_time_timer((window + 1) * WINDOW_MS - 1)
        self._numbers.add(number)
        self._odd.put(window, (self._odd.get(window) or 0) + number % 2)
        if self._is_reminded.value() is None:
            self._is_reminded.update(False)
            timers.register_processing_time_timer(
                timers.current_processing_time() + REMIND_AFTER_MS
            )

    def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterator[Row]:
        if context.time_domain is TimeDomain.PROCESSING_TIME:
            self._is_reminded.update(True)
            context.output("reminders", {"key": context.get_current_key()})
            return
        window = timestamp_ms // WINDOW_MS
        numbers = self._numbers.get()
        yield {
            "key": context.get_current_key(),
            "window": window,
            "total": sum(number for number in numbers if window_of(number) == window),
            "odd": self._odd.get(window),
        }
        self._numbers.update(number for number in numbers if window_of(number) != window)
        self._odd.remove(window)


class RunningTotal(BatchProcessFunction):
    def open(self, context: ProcessContext) -> None:
        self._total = context.get_reducing_state(
            ReducingStateDescriptor("total", pc.add, pa.int64())
        )
        self._totals = context.metrics.histogram("totals")

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        for start in range(batch.num_rows):  # each row of a key that repeats has its own total
            row = batch.slice(start, 1)
            keys = context.keys(row)
            self._total.add(keys, row["total"])
            self._totals.update(row["total"][0].as_py())
            columns = [*row.columns, self._total.get(keys)]
            context.collect(pa.RecordBatch.from_arrays(columns, schema=TOTALS))


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment(pace=float(parameters["hours_per_s"]))
    output = Path(parameters["output"])
    held_at = parameters["held_at"]
    source = Numbers(int(parameters["total"]), held_at=int(held_at) if held_at else None)
    new = parameters["prefix"]
    numbers = env.source(source, uid=f"{new}numbers")
    minutes = numbers.key_by("key").process(Minutes(), MINUTES, uid=f"{new}minutes")
    totals = minutes.key_by("key").process(RunningTotal(), TOTALS, uid=f"{new}running")
    totals.sink(ExactlyOnceFiles(output / "totals", pipeline="timed"), uid="totals-files")
    reminders = minutes.side_output("reminders", uid="reminders")
    reminders.sink(ExactlyOnceFiles(output / "reminders", pipeline="timed"), uid="reminder-files")
    return env.build()


def window_of(number: int) -> int:
    return number * STEP_MS // WINDOW_MS


def expected_totals(total: int) -> pd.DataFrame:
    numbers = pd.DataFrame({"number": np.arange(total)})
    numbers["key"] = numbers["number"] % KEYS
    numbers["window"] = numbers["number"] * STEP_MS // WINDOW_MS
    numbers["odd"] = numbers["number"] % 2
    minutes = numbers.groupby(["key", "window"], as_index=False).agg(
        total=("number", "sum"), odd=("odd", "sum")
    )
    minutes["running"] = minutes.groupby("key")["total"].cumsum()
    return minutes


def committed_totals(output: Path) -> pd.DataFrame:
    return rows_in(output / "totals").sort_values(["key", "window"]).reset_index(drop=True)


def reminded_keys(output: Path) -> list[int]:
    return sorted(rows_in(output / "reminders")["key"].tolist())


def rows_in(directory: Path) -> pd.DataFrame:
    files = sorted(path for path in directory.glob("*.parquet") if path.name[0] not in "._")
    return pd.concat([pq.read_table(path).to_pandas() for path in files])


FLOW = Flow(
    name="timed",
    summary="Numbers gathered per key until a timer fires, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("total", "900", "how many numbers there are"),
        Parameter("hours_per_s", "0.1", "event-hours per second"),
        Parameter("held_at", "", "the number from which on there is nothing to read"),
        Parameter("prefix", "", "of the uids of what has state"),
    ),
    assemble=assemble,
)
