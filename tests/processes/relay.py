"""A flow whose output shows every lost or doubled record: numbers in, numbers out.

Every second split is read slowly, so that barriers arrive far apart. The operator behind the
exchange is slow too, so that records queue up before it. It may have state of a given number of
keys.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.graph import Connection, EdgeKind
from pipelines.domain.run import Parameter
from pipelines.operators.stateless import BatchFunction
from pipelines.stream import (
    BatchProcessFunction,
    Environment,
    Flow,
    Pipeline,
    ProcessContext,
    Stream,
    ValueStateDescriptor,
)
from tests.processes.numbers import KEYS, SCHEMA, Numbers

KEY_INDEX = SCHEMA.get_field_index("key")


@dataclass(frozen=True, slots=True)
class LaggingNumbers(Numbers):
    """Waits before each batch, four times as long in every second split.

    With `whole_splits`, a batch is a split.
    """

    lag_s: float = 0.0
    whole_splits: bool = False
    keys: int = KEYS

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        # Not super(), which does not work in a dataclass with slots.
        batches = Numbers.read(self, index, offset)
        if self.whole_splits:
            batches = iter(pa.Table.from_batches(batches, SCHEMA).combine_chunks().to_batches())
        for batch in batches:
            time.sleep(self.lag_s if index % 2 else self.lag_s / 4)
            key = pa.array(np.asarray(batch["number"]) % self.keys)
            yield batch.set_column(KEY_INDEX, SCHEMA.field(KEY_INDEX), key)


class SlowMemory(BatchProcessFunction):
    """Passes its input on, and keeps the newest number of each key."""

    def __init__(self, slow_s: float) -> None:
        self._slow_s = slow_s

    def open(self, context: ProcessContext) -> None:
        self._newest = context.get_state(ValueStateDescriptor("newest", pa.int64()))

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        time.sleep(self._slow_s)
        self._newest.update(context.keys(batch), batch["number"])
        context.collect(batch)


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    slow_s = float(parameters["slow_ms"]) / 1000

    def relay(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(slow_s)
        return batch

    env = Environment()
    lag_s, whole_splits = float(parameters["lag_ms"]) / 1000, parameters["whole_splits"] == "yes"
    state_keys = int(parameters["state_keys"])
    source = LaggingNumbers(
        int(parameters["total"]),
        lag_s=lag_s,
        whole_splits=whole_splits,
        keys=state_keys or KEYS,
    )
    numbers = env.source(source, uid="numbers")
    edges = {
        "key": Connection(numbers.node, ("key",)),
        "rebalance": Connection(numbers.node, unkeyed=EdgeKind.REBALANCE),
    }
    if state_keys:
        relayed = numbers.key_by("key").process(SlowMemory(slow_s), SCHEMA, uid="relay")
    else:
        edge = edges[parameters["edge"]]
        node = env.add_operator("relay", lambda: BatchFunction(relay, SCHEMA), (edge,))
        relayed = Stream(env, node, "at")
    output = ExactlyOnceFiles(Path(parameters["output"]), pipeline="relay")
    relayed.sink(output, uid="files")
    return env.build()


@dataclass(frozen=True, slots=True)
class Balance:
    """How many of the numbers 0, 1, ..., total - 1 were lost or came again."""

    lost: int
    doubled: int


def balance(output: Path, total: int) -> Balance:
    files = sorted(path for path in output.glob("*.parquet") if path.name[0] not in "._")
    seen = Counter(number for path in files for number in pq.read_table(path)["number"].to_pylist())
    return Balance(
        lost=total - len(seen), doubled=sum(count - 1 for count in seen.values() if count > 1)
    )


FLOW = Flow(
    name="relay",
    summary="Numbers through a slow keyed exchange, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("total", "6000", "how many numbers there are"),
        Parameter("slow_ms", "2", "how long the reader takes for a batch"),
        Parameter("whole_splits", "no", "yes: a batch is a split of 1000 numbers"),
        Parameter("edge", "key", "how the reader gets its records: key or rebalance"),
        Parameter("state_keys", "0", "keys in the reader's state, by key; 0: it has none"),
        Parameter("lag_ms", "0", "how long a batch of every second split takes to read"),
    ),
    assemble=assemble,
)
