"""One source, two paths of different length, and the operator where they meet again.

Every record arrives there once on each path. The output names, per path, the record of the same key
that came before it. The source ends when a file exists.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.graph import Connection
from pipelines.domain.run import Parameter
from pipelines.operators.rows import Row
from pipelines.operators.stateless import BatchFunction
from pipelines.stream import (
    Environment,
    Flow,
    KeyedProcessFunction,
    MapStateDescriptor,
    Pipeline,
    RowContext,
    RuntimeContext,
    Stream,
)
from tests.processes.numbers import KEYS, SCHEMA, SPLIT_RECORDS, Numbers
from tests.processes.silent import NOTHING, OVER, POLL_S

SHORT, LONG = range(2)  # paths
SLOW_S = 0.004
FIRST = -1
MET = pa.schema([("number", pa.int64()), ("way", pa.int64()), ("previous", pa.int64())])


@dataclass(frozen=True, slots=True)
class NumbersUntilTold(Numbers):
    script: Path = Path()

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        # Not super(), which does not work in a dataclass with slots.
        yield from Numbers.read(self, index, offset)
        is_last = Numbers.split_id(self, index + 1) is None
        while is_last and not (self.script / OVER).exists():
            time.sleep(POLL_S)
            yield NOTHING


class Meeting(KeyedProcessFunction):
    def open(self, runtime: RuntimeContext) -> None:
        self._previous = runtime.get_map_state(
            MapStateDescriptor("previous", pa.int64(), pa.int64())
        )

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        yield self._met(row["number"], SHORT)

    def process_other_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        yield self._met(row["number"], LONG)

    def _met(self, number: int, way: int) -> Row:
        previous = self._previous.get(way)
        self._previous.put(way, number)
        return {"number": number, "way": way, "previous": FIRST if previous is None else previous}


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment(pace=float(parameters["hours_per_s"]))
    source = NumbersUntilTold(int(parameters["total"]), Path(parameters["script"]))
    numbers = env.source(source, uid="numbers")
    keyed = numbers.map_batches(_with_keys_of_a_split, SCHEMA, uid="keyed")
    slower = env.add_operator(
        "slower", lambda: BatchFunction(_slowly, SCHEMA), (Connection(keyed.node, ("key",)),)
    )
    met = keyed.connect(Stream(env, slower, "at")).key_by(["key"], ["key"])
    output = ExactlyOnceFiles(Path(parameters["output"]), pipeline="diamond")
    met.process(Meeting(), MET, uid="met").sink(output, uid="files")
    return env.build()


def _with_keys_of_a_split(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Splits are read side by side, so records of different splits have no order."""
    splits = pc.divide(batch["number"], SPLIT_RECORDS)
    keys = pc.add(batch["key"], pc.multiply(splits, KEYS))
    return pa.record_batch([batch["number"], keys, batch["at"]], schema=SCHEMA)


def _slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(SLOW_S)
    return batch


def expected(total: int) -> pd.DataFrame:
    numbers = pd.DataFrame({"number": range(total)})
    # Keys repeat, so the previous number of a key is `KEYS` back, unless the split begins there.
    is_first = numbers["number"] % SPLIT_RECORDS < KEYS
    numbers["previous"] = (numbers["number"] - KEYS).where(~is_first, FIRST)
    both = pd.concat([numbers.assign(way=way) for way in (SHORT, LONG)])
    return both[MET.names].sort_values(["number", "way"]).reset_index(drop=True)


def committed(output: Path) -> pd.DataFrame:
    files = sorted(path for path in output.glob("*.parquet") if path.name[0] not in "._")
    rows = pd.concat([pq.read_table(path).to_pandas() for path in files])
    return rows[MET.names].sort_values(["number", "way"]).reset_index(drop=True)


FLOW = Flow(
    name="diamond",
    summary="Numbers that part and meet again, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("script", None, "directory of the file that ends it"),
        Parameter("total", "2880", "how many numbers there are"),
        Parameter("hours_per_s", "1", "event-hours per second"),
    ),
    assemble=assemble,
)
