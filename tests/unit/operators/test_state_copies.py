"""Changing a value in place, after a state returned or received it, does not change the state.

These tests cover every kind of state that uses Python values. A function reads what was put,
whatever it did to such values before, and wherever batches end and the state is cut and restored.
The states of whole batches use Arrow arrays. Those do not change, but the memory below them may.
"""

import copy
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.key_groups import KeyGroupRange, Redistribution
from pipelines.operators.processing.process import KeyedProcessFunction, Process
from pipelines.operators.processing.row_context import RowContext, RuntimeContext
from pipelines.operators.rows import Row
from pipelines.operators.stateless import FlatMapRows
from pipelines.state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pipelines.state.entries import KeyedStateContext
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.keyed_backend import KeyedStates
from pipelines.state.operator_states import OperatorStates
from pipelines.state.timers import TimeDomain, Timers
from tests.unit.operators.harness import MAX_PARALLELISM, Host

NUMBERS = pa.list_(pa.int64())
NESTED = pa.struct([("number", pa.int64())])
STEPS = pa.schema([("key", pa.string()), ("kind", pa.string()), ("n", pa.int64())])
SEEN = pa.schema([("seen", pa.string())])
KINDS = ("value", "list", "map", "reducing", "aggregating", "broadcast")
JUNK = -1
Value = dict[str, Any]


class Numbers(AggregateFunction):
    def create_accumulator(self) -> Value:
        return EMPTY  # one object for all keys

    def add(self, accumulator: Value, value: Value) -> Value:
        accumulator["number"] += value["number"]
        return accumulator

    def get_result(self, accumulator: Value) -> Value:
        return accumulator


EMPTY: Value = {"number": 0}


def both(left: Value, right: Value) -> Value:
    """Changes its argument in place, as user functions do."""
    left["number"] += right["number"]
    return left


class Spoiling(KeyedProcessFunction):
    """Reads and puts values, and changes each of them in place afterwards."""

    def open(self, runtime: RuntimeContext) -> None:
        named = {kind: f"the-{kind}" for kind in KINDS}
        self._value = runtime.get_state(ValueStateDescriptor(named["value"], NESTED))
        self._list = runtime.get_list_state(ListStateDescriptor(named["list"], NESTED))
        self._map = runtime.get_map_state(MapStateDescriptor(named["map"], pa.int64(), NESTED))
        self._reducing = runtime.get_reducing_state(
            ReducingStateDescriptor(named["reducing"], both, NESTED)
        )
        self._aggregating = runtime.get_aggregating_state(
            AggregatingStateDescriptor(named["aggregating"], Numbers(), NESTED)
        )
        self._broadcast = runtime.get_broadcast_state(
            MapStateDescriptor(named["broadcast"], pa.int64(), NUMBERS)
        )

    def process_element(self, row: Row, context: RowContext) -> Iterator[Row]:
        kind, n = row["kind"], row["n"]
        given = {"number": n}
        if kind == "value":
            self._value.update(given)
        elif kind == "list":
            (self._list.add if n % 3 else lambda value: self._list.update([value]))(given)
        elif kind == "map":
            self._map.put(n % 3, given)
        elif kind == "reducing":
            self._reducing.add(given)
        elif kind == "aggregating":
            self._aggregating.add(given)
        spoil(given)
        emitted = {"seen": ""}
        for each in KINDS:
            got = self._got(each)
            emitted["seen"] = f"{context.get_current_key()} {each} {got}"
            yield emitted  # the same object each time
            for value in got:
                spoil(value)

    def process_other_element(self, row: Row, context: RowContext) -> None:
        given = [row["n"]]
        self._broadcast.put(row["n"] % 3, given)
        spoil(given)
        for key in range(3):
            spoil(self._broadcast.get(key))

    def _got(self, kind: str) -> list[Any]:
        one: dict[str, Callable[[], Any]] = {
            "value": self._value.value,
            "reducing": self._reducing.get,
            "aggregating": self._aggregating.get,
        }
        if kind in one:
            return [each for each in [one[kind]()] if each is not None]
        if kind == "list":
            return self._list.get()
        entries = self._map if kind == "map" else self._broadcast
        spoil(entries.get(0))
        return [value for _, value in sorted(entries.items())]


def spoil(value: Value | list[int] | None) -> None:
    if isinstance(value, list):
        value.append(JUNK)
    elif value is not None:
        value["number"] = JUNK


class Model:
    """The expected behaviour: values are copied, never shared."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Any] = {}
        self.seen: list[str] = []

    def process(self, key: str, kind: str, n: int) -> None:
        place, given = (key, kind), {"number": n}
        former = copy.deepcopy(self._kept.get(place))
        if kind == "value":
            self._kept[place] = [given]
        elif kind == "list":
            self._kept[place] = [*former, given] if former and n % 3 else [given]
        elif kind == "map":
            self._kept[place] = {**(former or {}), n % 3: given}
        elif kind in ("reducing", "aggregating"):
            self._kept[place] = [{"number": n + (former[0]["number"] if former else 0)}]
        for each in KINDS:
            self.seen.append(f"{key} {each} {self._values(key, each)}")

    def broadcast(self, n: int) -> None:
        self._kept.setdefault(("", "broadcast"), {})[n % 3] = [n]

    def _values(self, key: str, kind: str) -> list[Any]:
        kept = self._kept.get(("" if kind == "broadcast" else key, kind), [])
        return [kept[each] for each in sorted(kept)] if isinstance(kept, dict) else kept


@pytest.mark.parametrize("seed", range(40))
def test_in_place_changes_to_values_never_reach_the_state(seed: int) -> None:
    rng = random.Random(seed)
    host = Host(lambda: Process(Spoiling(), (("key",), ()), SEEN, "f"), [STEPS, STEPS])
    model = Model()

    for _ in range(12):
        steps = [(rng.choice("ab"), rng.choice(KINDS[:5]), rng.randrange(100)) for _ in range(6)]
        if rng.random() < 0.5:
            host.send([{"key": "", "kind": "", "n": n} for _, _, n in steps], port=1)
            for _, _, n in steps:
                model.broadcast(n)
        else:
            host.send([dict(zip(STEPS.names, step, strict=True)) for step in steps])
            for step in steps:
                model.process(*step)
        if rng.random() < 0.3:
            host = host.recovered()

    assert [row["seen"] for row in host.rows] == model.seen
    assert EMPTY == {"number": 0}


def test_changing_a_row_after_emitting_it_does_not_change_the_output() -> None:
    schema = pa.schema([("numbers", NUMBERS)])

    def growing(row: Row) -> Iterator[Row]:
        for n in range(3):
            row["numbers"].append(n)
            yield row

    host = Host(lambda: FlatMapRows(growing, schema), [schema])
    host.send([{"numbers": []}])

    assert [row["numbers"] for row in host.rows] == [[0], [0, 1], [0, 1, 2]]


def test_state_copies_values_that_lie_in_mutable_memory() -> None:
    """Arrow wraps a NumPy array without copying it."""
    backend = HashMapBackend(KeyGroupRange(0, MAX_PARALLELISM - 1), MAX_PARALLELISM)
    key = pa.schema([("k", pa.int64())])
    context = KeyedStateContext(backend, key, lambda: 0)
    states, timers = KeyedStates(context), Timers(context, TimeDomain.EVENT_TIME)
    value = states.value(ValueStateDescriptor("value", pa.int64()))
    elements = states.list(ListStateDescriptor("list", pa.int64()))
    entries = states.map(MapStateDescriptor("map", pa.int64(), pa.int64()))
    whole = OperatorStates().list_of(ListStateDescriptor("all", pa.int64()), Redistribution.SPLIT)
    keys = partial(pa.record_batch, schema=key)
    lent = [np.array([1, 2, 3]) for _ in range(6)]
    of_keys, of_values, of_map_keys, of_map_values, of_timers, of_all = lent
    given = keys([pa.array(of_keys)])

    value.update(given, pa.array(of_values))
    elements.add(given, pa.array(of_values))
    entries.put(given, pa.array(of_map_keys), pa.array(of_map_values))
    timers.register(given, of_timers)
    whole.add(pa.array(of_all))
    asked = keys([pa.array([1, 2, 3])])
    handed_out = value.value(asked)
    for array in lent:
        array[:] = JUNK
    value.update(asked, pa.array([7, 7, 7]))

    assert handed_out.to_pylist() == [1, 2, 3]
    assert elements.get(asked).to_pylist() == [[1], [2], [3]]
    assert [pairs[0]["value"] for pairs in entries.peek(asked).to_pylist()] == [1, 2, 3]
    assert whole.get().to_pylist() == [1, 2, 3]
    assert [batch.to_pylist() for batch in whole.freeze().batches] == [
        [{"all": 1}, {"all": 2}, {"all": 3}]
    ]
    due = timers.take_due(3)
    assert due is not None
    assert due.timestamps_ms.tolist() == [1, 2, 3]
    assert due.keys.column(0).to_pylist() == [1, 2, 3]
