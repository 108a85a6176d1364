"""Random dataflows, and what their output has to be.

A plan is a list of steps, drawn from a seed. The engine runs it (`assemble`), and `model` says, in
plain Python that shares nothing with the engine, which rows come out of a given part of the input.
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.flows.registry import FLOWS, Flow, Parameter
from pipelines.operators.process_function import KeyedProcessFunction
from pipelines.operators.row_context import RowContext, RuntimeContext
from pipelines.operators.rows import Row
from pipelines.operators.windows import tumbling
from pipelines.state.descriptors import ValueStateDescriptor
from pipelines.stream import Environment, Pipeline, Stream, count
from tests.simulation.outside import KEYS, SCHEMA, OutsideSink, Part, SimulatedSource, event

FLOW_NAME = "simulated"
WINDOW_S = 8
RIGHT = pa.schema(
    [("right_id", pa.int64()), ("key", pa.int64()), ("right_at", pa.timestamp("ms", tz="UTC"))]
)
OUT = pa.schema([("kind", pa.string()), ("first", pa.int64()), ("second", pa.int64())])
PAIR, MODULUS = 100_003, 1_000_000_007

Event = tuple[int, int, int]  # id, key, milliseconds
Output = Counter[tuple[str, int, int]]


@dataclass(frozen=True)
class Step:
    """`inputs` are indices of earlier steps, `number` is what the operation needs."""

    operation: str  # source, map, filter, rebalance, union, join, rows, counts, windows
    inputs: tuple[int, ...] = ()
    number: int = 0

    @property
    def is_end(self) -> bool:
        return self.operation in ("rows", "counts", "windows")


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...]
    records: int  # per split
    splits: int

    @property
    def sources(self) -> list[int]:
        return [i for i, step in enumerate(self.steps) if step.operation == "source"]

    def whole(self) -> Part:
        """All records of all splits."""
        return {(s, k): self.records for s in self.sources for k in range(self.splits)}


def draw(rng: random.Random) -> Plan:
    """3 to 10 operators: one or two sources, unions, joins, and every stream ends in a sink."""
    steps = [Step("source") for _ in range(rng.choice([1, 1, 2]))]
    unread = list(range(len(steps)))
    for _ in range(rng.randint(1, 6)):
        step = _draw_step(rng, unread)
        unread = [index for index in unread if index not in step.inputs]
        steps.append(step)
        unread.append(len(steps) - 1)
        if rng.random() < 0.25:  # a diamond: the stream is read once more
            unread.append(rng.choice([i for i in range(len(steps)) if not steps[i].is_end]))
    steps += [Step(rng.choice(["rows", "counts", "windows"]), (index,)) for index in unread]
    return Plan(tuple(steps), records=rng.randint(8, 30), splits=rng.randint(1, 3))


def _draw_step(rng: random.Random, unread: list[int]) -> Step:
    if len(set(unread)) > 1 and rng.random() < 0.6:
        pair = tuple(rng.sample(sorted(set(unread)), 2))
        return Step(rng.choice(["union", "join"]), pair)
    operation = rng.choice(["map", "filter", "rebalance"])
    return Step(operation, (rng.choice(unread),), rng.randint(2, 4))


# As the engine runs it.


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
            return env.source(SimulatedSource(index, plan.records, ends), uid=uid)
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
    windows = stream.key_by("key").window(tumbling(seconds=WINDOW_S))
    counted = windows.aggregate(records=count(), uid=uid)
    return counted.map_batches(_as_windows, OUT, uid=f"{uid}-out")


class RunningCount(KeyedProcessFunction):
    """Emits how many of its key have come, itself included: a lost or doubled record shows."""

    def open(self, runtime: RuntimeContext) -> None:
        self._count = runtime.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        number = (self._count.value() or 0) + 1
        self._count.update(number)
        yield {"kind": "counts", "first": row["key"], "second": number}


def _as_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _out("rows", batch["id"], batch["key"])


def _as_windows(batch: pa.RecordBatch) -> pa.RecordBatch:
    starts = batch["window_start"].cast(pa.int64())
    return _out("windows", pc.add(pc.multiply(starts, KEYS), batch["key"]), batch["records"])


def _out(kind: str, first: pa.Array, second: pa.Array) -> pa.RecordBatch:
    kinds = pa.array([kind] * len(first), pa.string())
    return pa.record_batch([kinds, first.cast(pa.int64()), second.cast(pa.int64())], schema=OUT)


# As it has to be.


def model(plan: Plan, part: Part) -> Output:
    """The output for the first `part[source, split]` records of each split."""
    streams: list[list[Event]] = []
    output: Output = Counter()
    for index, step in enumerate(plan.steps):
        inputs = [streams[i] for i in step.inputs]
        streams.append([] if step.is_end else list(_flow(plan, index, step, inputs, part)))
        if step.is_end:
            output.update(_ended(step.operation, inputs[0]))
    return output


def _flow(
    plan: Plan, index: int, step: Step, inputs: list[list[Event]], part: Part
) -> Iterable[Event]:
    match step.operation:
        case "source":
            ends = ((k, n) for (source, k), n in part.items() if source == index)
            return (event(index, k, o, plan.records) for k, n in ends for o in range(n))
        case "map":
            return ((i, (key * step.number + 1) % KEYS, at) for i, key, at in inputs[0])
        case "filter":
            return (each for each in inputs[0] if each[0] % step.number != 0)
        case "rebalance":
            return inputs[0]
        case "union":
            return inputs[0] + inputs[1]
    return _pairs(*inputs)


def _pairs(left: list[Event], right: list[Event]) -> Iterator[Event]:
    by_place: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for each in right:
        by_place[_place(each)].append(each)
    for number, key, at in left:
        for other, _, _ in by_place[_place((number, key, at))]:
            yield (number * PAIR + other) % MODULUS, key, at


def _place(each: Event) -> tuple[int, int]:
    return each[1], each[2] // (WINDOW_S * 1_000)


def _ended(kind: str, events: list[Event]) -> Output:
    if kind == "rows":
        return Counter((kind, number, key) for number, key, _ in events)
    if kind == "counts":
        counts = Counter(key for _, key, _ in events)
        return Counter((kind, key, n + 1) for key, count in counts.items() for n in range(count))
    windows = Counter(_place(each) for each in events)
    return Counter(
        (kind, window * WINDOW_S * 1_000 * KEYS + key, n) for (key, window), n in windows.items()
    )


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
FLOWS[FLOW_NAME] = "tests.simulation.graphs"
