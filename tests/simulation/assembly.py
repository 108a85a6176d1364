"""The dataflow of a drawn plan in the engine: the flow `simulated`, assembled from text alone."""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.ids import Uid
from pipelines.domain.run import Parameter
from pipelines.operators.rows import Row
from pipelines.operators.windowing.windows import Windows
from pipelines.stream import (
    BatchProcessFunction,
    Environment,
    Flow,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Pipeline,
    ProcessContext,
    RowContext,
    RuntimeContext,
    Stream,
    ValueStateDescriptor,
    count,
    session,
    sliding,
    tumbling,
)
from tests.own_flows import declare
from tests.simulation.model import GAP_MS, MODULUS, PAIR, SLIDE_S, WINDOW_S
from tests.simulation.outside import KEYS, SCHEMA, OutsideSink, SimulatedSource
from tests.simulation.plans import Plan, Step, draw
from tests.simulation.poison import Poison

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
    for uid, parallelism in json.loads(parameters["parallelisms"]).items():
        env.set_parallelism(Uid(uid), parallelism)
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
    poison = Poison.from_json(parameters["poison"]).of(index)
    match step.operation:
        case "source":
            ends = {int(k): n for k, n in json.loads(parameters["ends"])[str(index)].items()}
            source = SimulatedSource(index, plan.records, ends, plan.batch, poison)
            return env.source(source, uid=uid)
        case "map":
            number = step.number
            return inputs[0].map_batches(
                lambda batch: _mapped(_digested(batch, poison), number), SCHEMA, uid=uid
            )
        case "filter":
            number = step.number
            return inputs[0].filter(
                lambda batch: _is_no_multiple(_digested(batch, poison), number), uid=uid
            )
        case "rebalance":
            return (
                inputs[0]
                .rebalance()
                .map_batches(lambda batch: _digested(batch, poison), SCHEMA, uid=uid)
            )
        case "union":
            return inputs[0].union(inputs[1], uid=uid)
        case "join":
            return _joined(inputs[0], inputs[1], uid)
    ended = _end(inputs[0], step, uid, poison)
    return ended.sink(OutsideSink(parameters["world"]), uid=f"{uid}-sink")


def _digested(batch: pa.RecordBatch, poison: frozenset[int]) -> pa.RecordBatch:
    """Passes the batch through. Raises ValueError if it contains a poison record."""
    if poison and not poison.isdisjoint(batch["id"].to_pylist()):
        raise ValueError("a record cannot be digested")
    return batch


def _is_no_multiple(batch: pa.RecordBatch, number: int) -> pa.Array:
    return pa.array(batch["id"].to_numpy() % number != 0)


def paired(left: Any, right: Any) -> Any:
    return (left * PAIR + right) % MODULUS


def _mapped(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    keys = (batch["key"].to_numpy() * number + 1) % KEYS
    return pa.record_batch([batch["id"], pa.array(keys), batch["at"]], schema=SCHEMA)


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


def _end(stream: Stream, step: Step, uid: str, poison: frozenset[int]) -> Stream:
    if step.operation == "rows":
        return stream.map_batches(_as_rows, OUT, uid=uid)
    if step.operation == "counts":
        return stream.key_by("key").process(RunningCount(poison), OUT, uid=uid)
    if step.operation == "timers":
        return stream.key_by("key").process(Gathering(), OUT, uid=uid)
    if step.operation == "lists":
        told = stream.key_by("key").connect(stream.broadcast())
        return told.process(Listing(), OUT, uid=uid)
    kind = step.operation
    windows = stream.key_by("key").window(WINDOWS[kind])
    counted = windows.aggregate(records=count(), uid=uid)
    return counted.map_batches(lambda batch: _as_windows(kind, batch), OUT, uid=f"{uid}-out")


WINDOWS: dict[str, Windows] = {
    "windows": tumbling(seconds=WINDOW_S),
    "sliding": sliding(timedelta(seconds=WINDOW_S), every=timedelta(seconds=SLIDE_S)),
    "sessions": session(milliseconds=GAP_MS),
}


class RunningCount(KeyedProcessFunction):
    """Emits the count of its key's records, this one included, so a lost or doubled record shows.

    When it fails on a record, it has already counted it.
    """

    def __init__(self, poison: frozenset[int]) -> None:
        self._poison = poison

    def open(self, runtime: RuntimeContext) -> None:
        self._count = runtime.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        number = (self._count.value() or 0) + 1
        self._count.update(number)
        if row["id"] in self._poison:
            raise KeyError(f"{row['id']} cannot be counted")
        yield {"kind": "counts", "first": row["key"], "second": number}


class Gathering(KeyedProcessFunction):
    """Emits the same rows as `windows`, from a list and from timers registered once."""

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


class Listing(BatchProcessFunction):
    """Keeps its input in state that belongs to no key, and emits nothing.

    Only the points tell where the elements are (`listed_rows`).
    """

    def open(self, context: ProcessContext) -> None:
        element, entry = ListStateDescriptor("split", pa.int64()), pa.int64()
        self._split = context.get_operator_list_state(element)
        self._union = context.get_operator_union_list_state(replace(element, name="union"))
        self._told = context.get_broadcast_state(MapStateDescriptor("told", entry, entry))

    def initialize_state(self, context: ProcessContext) -> None:
        """Keeps only its part of the union list, which would otherwise grow with each restore."""
        own = pa.array(range(context.subtask, len(self._union), context.parallelism), pa.int64())
        self._union.update(self._union.get().take(own))

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        self._split.add(batch["id"])
        self._union.add(batch["id"])

    def process_other_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        for entry in pc.add(pc.multiply(batch["id"], KEYS), batch["key"]).to_pylist():
            self._told.put(entry, (self._told.get(entry) or 0) + 1)


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
        Parameter("poison", None, "which step fails on which records"),
        Parameter("ends", None, "how many records each split has, by source"),
        Parameter("parallelisms", None, "of the operators that have one of their own"),
    ),
    assemble=assemble,
)
declare(FLOW_NAME, "tests.simulation.assembly")
