"""A flow that fills keyed state with rows of a given width, and then waits until it is stopped.

It serves tests of restores: its state is as large as its parameters say and does not compress.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.connectors import BlackHole
from pipelines.domain.graph import Connection
from pipelines.domain.run import Parameter
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.state.backend import TableDescriptor
from pipelines.stream import Environment, Flow, Pipeline, Stream

KEEPER = "keeper"
SPLITS = 2
BATCH_BYTES = 4 << 20
POLL_S = 0.01
SCHEMA = pa.schema([("key", pa.int64()), ("content", pa.binary())])
ROWS = TableDescriptor(
    name="rows",
    key=pa.schema([SCHEMA.field("key")]),
    value=pa.schema([SCHEMA.field("content")]),
    defaults={"content": b""},
    key_group_by=("key",),
)


@dataclass(frozen=True, slots=True)
class WideRows:
    """`rows` in total, each with `row_bytes` of noise. Implements `Source`; it never ends."""

    rows: int
    row_bytes: int
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
        return f"rows-{index}" if index < SPLITS else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        keys = range(index, self.rows, SPLITS)
        step = max(1, BATCH_BYTES // self.row_bytes)
        for start in range(offset, len(keys), step):
            yield batch_of(np.array(keys[start : start + step]), self.row_bytes)
        while True:
            time.sleep(POLL_S)
            yield batch_of(np.arange(0), self.row_bytes)

    def event_time_ms(self, index: int, offset: int) -> int | None:
        return None


class Keeper(Operator):
    """Keeps the newest row of each key."""

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._rows = context.state.table(ROWS)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        rows = self._rows.rows_for(batch.select(["key"]))
        self._rows.write_arrow("content", rows, batch.column("content"))


def batch_of(keys: "np.ndarray[tuple[int], np.dtype[np.int64]]", row_bytes: int) -> pa.RecordBatch:
    noise = np.random.default_rng(keys[:1]).bytes(len(keys) * row_bytes)
    offsets = np.arange(0, (len(keys) + 1) * row_bytes, row_bytes, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(noise)]
    content = pa.Array.from_buffers(pa.binary(), len(keys), buffers)
    return pa.record_batch([pa.array(keys, pa.int64()), content], schema=SCHEMA)


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment()
    source = WideRows(int(parameters["rows"]), int(parameters["row_bytes"]))
    rows = Connection(env.source(source, uid="rows").node, ("key",))
    kept = env.add_operator(KEEPER, Keeper, (rows,))
    Stream(env, kept, None).sink(BlackHole(), uid="nowhere")
    return env.build()


FLOW = Flow(
    name="wide_rows",
    summary="Wide rows kept by key, for tests.",
    parameters=(
        Parameter("output", "", "not used"),
        Parameter("rows", None, "how many"),
        Parameter("row_bytes", "1000", "of noise in each"),
    ),
    assemble=assemble,
)
