"""A drawn plan as the engine runs it: the flow `simulated`, assembled from text alone."""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.flows.registry import FLOWS, Flow, Parameter
from pipelines.operators.process_function import KeyedProcessFunction
from pipelines.operators.row_context import RowContext, RuntimeContext
from pipelines.operators.rows import Row
from pipelines.operators.windows import session, tumbling
from pipelines.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from pipelines.stream import Environment, Pipeline, Stream, count
from tests.simulation.model import GAP_MS, MODULUS, PAIR, WINDOW_S
from tests.simulation.outside import KEYS, SCHEMA, OutsideSink, SimulatedSource
from tests.simulation.plans import Plan, Step, draw

FLOW_NAME = "simulated"
RIGHT = pa.schema(
    [("right_id", pa.int64()), ("key", pa.int64()), ("right_at", pa.timestamp("ms", tz="UTC"))]
)
OUT = pa.schema([("kind", pa.string()), ("first", pa.int64()), ("second", pa.int64())])


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    plan = draw(random.Random(int(parameters["seed"])))
    env = Environment()
    streams: list[Stream] = []
    for index, step in enumerate(plan.steps):
        streams.append(_add(env, index, step, streams, plan, parameters))
    return env.build()


def _add(
    env: Environment,
    index: int,
    step: Step,
    streams: list[Stream],
    plan: Plan,
    parameters: Mapping[str, str],
) -> Stream:
    uid = f"{step.operation}-{index}"
    inputs = [streams[i] for i in step.inputs]
    match step.operation:
        case "source":
            ends = {int(k): n for k, n in json.loads(parameters["ends"])[str(index)].items()}
            return env.source(SimulatedSource(index, plan.records, ends, plan.batch), uid=uid)
        case "map":
            number = step.number
            return inputs[0].map_batches(lambda batch: _mapped(batch, number), SCHEMA, uid=uid)
        case "filter":
            number = step.number
            return inputs[0].filter(
                lambda batch: pc.not_equal(pc.subtract(batch["id"], _times(batch, number)), 0),
                uid=uid,
            )
        case "rebalance":
            return inputs[0].rebalance().map_batches(lambda batch: batch, SCHEMA, uid=uid)
        case "union":
            return inputs[0].union(inputs[1], uid=uid)
        case "join":
            return _joined(inputs[0], inputs[1], uid)
    ended = _end(inputs[0], step, uid)
    return ended.sink(OutsideSink(parameters["world"]), uid=f"{uid}-sink")


def _times(batch: pa.RecordBatch, number: int) -> pa.Array:
    return pc.multiply(pc.divide(batch["id"], number), number)


def paired(left: Any, right: Any) -> Any:
    return (left * PAIR + right) % MODULUS


def _mapped(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    scaled = pc.add(pc.multiply(batch["key"], number), 1)
    keys = pc.subtract(scaled, pc.multiply(pc.divide(scaled, KEYS), KEYS))
    return pa.record_batch([batch["id"], keys, batch["at"]], schema=SCHEMA)


def _joined(left: Stream, right: Stream, uid: str) -> Stream:
    def rename(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([batch["id"], batch["key"], batch["at"]], schema=RIGHT)

    def pair(batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = paired(batch["id"].to_numpy(), batch["right_id"].to_numpy())
        return pa.record_batch([pa.array(ids), batch["key"], batch["at"]], schema=SCHEMA)

    renamed = right.map_batches(rename, RIGHT, uid=f"{uid}-right")
    other = replace(renamed, time_column="right_at")
    both = left.join(other, on=["key"], window=tumbling(seconds=WINDOW_S), uid=uid)
    return both.map_batches(pair, SCHEMA, uid=f"{uid}-pairs")


def _end(stream: Stream, step: Step, uid: str) -> Stream:
    if step.operation == "rows":
        return stream.map_batches(_as_rows, OUT, uid=uid)
    if step.operation == "counts":
        return stream.key_by("key").process(RunningCount(), OUT, uid=uid)
    if step.operation == "timers":
        return stream.key_by("key").process(Gathering(), OUT, uid=uid)
    is_session = step.operation == "sessions"
    windows = session(milliseconds=GAP_MS) if is_session else tumbling(seconds=WINDOW_S)
    counted = stream.key_by("key").window(windows).aggregate(records=count(), uid=uid)
    kind = step.operation
    return counted.map_batches(lambda batch: _as_windows(kind, batch), OUT, uid=f"{uid}-out")


class RunningCount(KeyedProcessFunction):
    """Emits how many of its key have come, itself included: a lost or doubled record shows."""

    def open(self, runtime: RuntimeContext) -> None:
        self._count = runtime.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        number = (self._count.value() or 0) + 1
        self._count.update(number)
        yield {"kind": "counts", "first": row["key"], "second": number}


class Gathering(KeyedProcessFunction):
    """What `windows` gives out, of a list and of timers that nobody registers again."""

    def open(self, runtime: RuntimeContext) -> None:
        self._starts = runtime.get_list_state(ListStateDescriptor("starts", pa.int64()))

    def process_element(self, row: Row, context: RowContext) -> None:
        start_s = int(row["at"].timestamp()) // WINDOW_S * WINDOW_S
        if start_s not in self._starts.get():
            context.timer_service().register_event_time_timer((start_s + WINDOW_S) * 1_000 - 1)
        self._starts.add(start_s)

    def on_timer(self, timestamp_ms: int, context: RowContext) -> Iterator[Row]:
        start_s = (timestamp_ms + 1) // 1_000 - WINDOW_S
        starts = self._starts.get()
        first = start_s * 1_000 * KEYS + context.get_current_key()
        yield {"kind": "timers", "first": first, "second": starts.count(start_s)}
        self._starts.update(each for each in starts if each != start_s)


def _as_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _out("rows", batch["id"], batch["key"])


def _as_windows(kind: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    starts = batch["window_start"].cast(pa.int64())
    return _out(kind, pc.add(pc.multiply(starts, KEYS), batch["key"]), batch["records"])


def _out(kind: str, first: pa.Array, second: pa.Array) -> pa.RecordBatch:
    kinds = pa.array([kind] * len(first), pa.string())
    return pa.record_batch([kinds, first.cast(pa.int64()), second.cast(pa.int64())], schema=OUT)


FLOW = Flow(
    name=FLOW_NAME,
    summary="A random dataflow, for the simulator.",
    parameters=(
        Parameter("seed", None, "draws the dataflow"),
        Parameter("world", None, "name of the world outside"),
        Parameter("ends", None, "how many records each split has, by source"),
    ),
    assemble=assemble,
)
FLOWS[FLOW_NAME] = "tests.simulation.assembly"
