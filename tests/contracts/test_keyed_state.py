"""Value, list, map, reducing and aggregating state, and timers, against plain dictionaries.

On every backend, and from one to the other, random operations work on whole batches of keys, and
time passes or is set back. At random points a checkpoint, whole or incremental, or a savepoint
follows, and everything continues from it at any parallelism. The model is right: a state that
differs from it is wrong.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import KeyGroupRange, range_of
from pipelines.state.backend import StateBackend
from pipelines.state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BatchAggregateFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pipelines.state.entries import KeyedStateContext, StateTtlConfig, TtlUpdate, TtlVisibility
from pipelines.state.hashing import key_groups, key_hashes
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.list_state import ListState, MapState
from pipelines.state.timers import FiredTimers, TimeDomain, Timers
from pipelines.state.value_state import FoldingState, ValueState, aggregating, reducing
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends, seeded
from tests.contracts.stored_states import StoredAs, store_states

MAX_PARALLELISM = 16
KEY = pa.schema([("name", pa.string()), ("number", pa.int64())])
PROFILE = pa.struct([("title", pa.string()), ("age", pa.int32())])
MEAN = pa.struct([("sum", pa.int64()), ("count", pa.int64())])

Create = Callable[[KeyGroupRange, int], StateBackend]
Key = tuple[str | None, int | None]
Entry = tuple[object, int]  # a value, and the time of its last update

TTLS = {
    "for ever": None,
    "from the last write": StateTtlConfig(50),
    "from the last read": StateTtlConfig(50, TtlUpdate.ON_READ_AND_WRITE),
}


BACKENDS = ["hashmap", "rocksdb in tiny memory", "rocksdb and hashmap in turn"]


@pytest.fixture(params=BACKENDS)
def create(request: pytest.FixtureRequest) -> Iterator[Create]:
    hashmap = partial(HashMapBackend, is_incremental=True)
    with rocksdb_backends(TINY_BYTES, is_incremental=True) as rocksdb:
        made = {"hashmap": [hashmap], "rocksdb in tiny memory": [rocksdb]}
        kinds = cycle(made.get(request.param, [hashmap, rocksdb]))
        yield lambda *place: next(kinds)(*place)


@pytest.mark.slow
@pytest.mark.parametrize("ttl", TTLS.values(), ids=TTLS.keys())
@seeded("create", BACKENDS, 6)
def test_states_match_dictionaries_over_time_snapshots_and_rescaling(
    create: Create, ttl: StateTtlConfig | None, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    world = World(rng, create, ttl, tmp_path)
    actions = [
        (world.update_values, 4),
        (world.clear_values, 1),
        (world.add_to_lists, 4),
        (world.update_lists, 1),
        (world.clear_lists, 1),
        (world.put_into_maps, 4),
        (world.remove_from_maps, 3),
        (world.clear_maps, 1),
        (world.fold, 3),
        (world.clear_folds, 1),
        (world.register_timers, 3),
        (world.delete_timers, 1),
        (world.fire_timers, 2),
        (world.pass_time, 3),
        (world.set_clock_back, 1),
        (world.remove_expired, 3),
        (world.restart, 1),
        (world.read_all, 6),
    ]
    chosen, weights = zip(*actions, strict=True)

    for action in rng.choices(chosen, weights, k=70):
        action()
        world.settle()
    world.restart()
    world.read_all()


@pytest.mark.parametrize("kind", ["value", "list", "map", "reducing"])
def test_expired_state_is_removed_bit_by_bit(create: Create, kind: str) -> None:
    owner = Owner.of(create(KeyGroupRange(0, 15), MAX_PARALLELISM), Clock(), StateTtlConfig(10))
    keys = batch_of([("k", number) for number in range(30)])
    if kind == "value":
        owner.value.update(keys, profiles([("x", 1)] * 30))
    elif kind == "list":
        owner.list.add(keys, pa.array(range(30)))
    elif kind == "map":
        owner.map.put(keys, pa.array(["a"] * 30), pa.array([1.0] * 30))
    else:
        owner.reduced.add(keys, pa.array(["a"] * 30))
    owner.clock.now_ms += 10

    rows = [owner.backend.statistics().rows]
    for _ in range(6):
        owner.remove_expired(7)
        rows.append(owner.backend.statistics().rows)

    assert rows[-1] == 0
    assert rows[1] > 0
    assert rows == sorted(rows, reverse=True)


def test_a_list_expires_element_by_element(create: Create) -> None:
    owner = Owner.of(create(KeyGroupRange(0, 15), MAX_PARALLELISM), Clock(), StateTtlConfig(10))
    key = batch_of([("k", 1)])
    for number in range(4):
        owner.list.add(key, pa.array([number]))
        owner.clock.now_ms += 4

    owner.remove_expired(100)

    assert owner.list.get(key).to_pylist() == [[2, 3]]
    owner.list.add(key, pa.array([4]))
    assert owner.list.get(key).to_pylist() == [[2, 3, 4]]


def test_an_expired_value_may_be_shown_until_it_is_removed(create: Create) -> None:
    shown = StateTtlConfig(10, visibility=TtlVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP)
    owner = Owner.of(create(KeyGroupRange(0, 15), MAX_PARALLELISM), Clock(), shown)
    key = batch_of([("k", 1)])
    owner.value.update(key, profiles([("x", 1)]))
    owner.map.put(key, pa.array(["a"]), pa.array([1.5]))
    owner.clock.now_ms += 1000

    before = owner.value.value(key).to_pylist(), owner.map.get(key, pa.array(["a"])).to_pylist()
    owner.remove_expired(100)

    assert before == ([{"title": "x", "age": 1}], [1.5])
    assert owner.value.value(key).to_pylist() == [None]
    assert owner.map.contains(key, pa.array(["a"])).tolist() == [False]


def test_removing_entries_from_many_maps_at_once_keeps_the_others(create: Create) -> None:
    owner = Owner.of(create(KeyGroupRange(0, 15), MAX_PARALLELISM), Clock(), None)
    pairs = [(("k", number), letter) for letter in "abcdef" for number in range(5)]
    random.Random(1).shuffle(pairs)
    keys, letters = batch_of([key for key, _ in pairs]), pa.array([m for _, m in pairs])
    owner.map.put(keys, letters, pa.array([float(n) for n in range(30)]))
    removed = [n for n in range(30) if n % 2]

    owner.map.remove(keys.take(pa.array(removed)), letters.take(pa.array(removed)))

    for number in range(5):
        [entries] = owner.map.entries(batch_of([("k", number)])).to_pylist()
        expected = {m: float(n) for n, (k, m) in enumerate(pairs) if k[1] == number and not n % 2}
        assert {entry["key"]: entry["value"] for entry in entries} == expected


def test_keys_that_look_alike_are_different_keys(create: Create) -> None:
    owner = Owner.of(create(KeyGroupRange(0, 15), MAX_PARALLELISM), Clock(), None)
    awkward: list[Key] = [
        (None, 0),
        ("", 0),
        ("", None),
        (None, None),
        ("é", 1),
        ("e\u0301", 1),  # the same letter, decomposed
        ("1", 1),
        ("x" * 100_000, 1),
        ("x" * 99_999 + "y", 1),
        ("NaN", -(2**63)),
    ]

    owner.list.add(batch_of(awkward), pa.array(range(len(awkward))))

    assert owner.list.get(batch_of(awkward)).to_pylist() == [[n] for n in range(len(awkward))]


@pytest.mark.parametrize("type_", [pa.float64(), pa.decimal128(5, 2), pa.list_(pa.int8())])
def test_a_map_key_that_cannot_be_a_key_is_refused_by_name(
    create: Create, type_: pa.DataType
) -> None:
    """NaN equals nothing, so no entry could be found again."""
    with pytest.raises(Rejected, match=r"'scores.*'scores_key'.*"):
        MapState(context_of(create), MapStateDescriptor("scores", type_, pa.int64()))


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "ä", "x" * 61])
def test_a_state_name_that_no_file_could_have_is_refused(name: str) -> None:
    with pytest.raises(Rejected, match="state name"):
        ValueStateDescriptor(name, pa.int64())


def test_a_time_to_live_is_positive() -> None:
    with pytest.raises(Rejected, match="0 ms"):
        StateTtlConfig(0)


def test_values_of_another_type_are_refused_with_the_name_of_the_state(create: Create) -> None:
    state = ValueState(context_of(create), ValueStateDescriptor("count", pa.int64()))

    with pytest.raises(Rejected, match="'count' holds int64; it was given double"):
        state.update(batch_of([("k", 1)]), pa.array([1.5]))


def test_a_function_on_single_values_is_refused_where_batches_are_folded(create: Create) -> None:
    class Sum(AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def add(self, accumulator: int, value: int) -> int:
            return accumulator + value

        def get_result(self, accumulator: int) -> int:
            return accumulator

    with pytest.raises(Rejected, match=r"'total'.*BatchAggregateFunction"):
        aggregating(context_of(create), AggregatingStateDescriptor("total", Sum(), pa.int64()))


def test_adding_a_time_to_live_keeps_the_values_of_a_state() -> None:
    create = HashMapBackend
    old = Owner.of(create(KeyGroupRange(0, 15), MAX_PARALLELISM), Clock(), None)
    key = batch_of([("k", 1)])
    old.value.update(key, profiles([("x", 1)]))
    new = Owner.of(create(KeyGroupRange(0, 15), MAX_PARALLELISM), Clock(), StateTtlConfig(5))

    for frozen in old.backend.cut():
        if frozen.name == "value":
            new.backend.restore("value", frozen.batches)

    assert new.value.value(key).to_pylist() == [{"title": "x", "age": 1}]
    new.value.update(key, profiles([("y", 2)]))
    new.clock.now_ms += 5
    assert new.value.value(key).to_pylist() == [None]


class Mean(BatchAggregateFunction):
    def lift(self, values: pa.Array) -> pa.Array:
        ones = pa.array(np.ones(len(values), np.int64))
        return pa.StructArray.from_arrays([values, ones], fields=list(MEAN))

    def merge(self, left: pa.Array, right: pa.Array) -> pa.Array:
        pairs = zip(left.flatten(), right.flatten(), strict=True)
        return pa.StructArray.from_arrays([pc.add(*pair) for pair in pairs], fields=list(MEAN))

    def get_result(self, accumulators: pa.Array) -> pa.Array:
        total, count = accumulators.flatten()
        return pc.divide(total.cast(pa.float64()), count.cast(pa.float64()))


def concatenated(left: pa.Array, right: pa.Array) -> pa.Array:
    """Not commutative, so that a wrong order shows."""
    return pc.binary_join_element_wise(left, right, "")


@dataclass
class Clock:
    now_ms: int = 1_000


@dataclass
class Owner:
    """One subtask's states."""

    backend: StateBackend
    clock: Clock
    value: ValueState
    list: ListState
    map: MapState
    reduced: FoldingState
    mean: FoldingState
    timers: Timers

    @classmethod
    def of(cls, backend: StateBackend, clock: Clock, ttl: StateTtlConfig | None) -> "Owner":
        context = KeyedStateContext(backend, KEY, lambda: clock.now_ms)
        return cls(
            backend,
            clock,
            ValueState(context, ValueStateDescriptor("value", PROFILE, ttl=ttl)),
            ListState(context, ListStateDescriptor("list", pa.int64(), ttl=ttl)),
            MapState(context, MapStateDescriptor("map", pa.string(), pa.float64(), ttl=ttl)),
            reducing(
                context, ReducingStateDescriptor("reduced", concatenated, pa.string(), ttl=ttl)
            ),
            aggregating(context, AggregatingStateDescriptor("mean", Mean(), MEAN, ttl=ttl)),
            Timers(context, TimeDomain.EVENT_TIME),
        )

    def remove_expired(self, limit: int) -> None:
        for state in (self.value, self.list, self.map, self.reduced, self.mean):
            state.remove_expired(limit)


@dataclass
class World:
    """Several owners, and the state that they must hold together."""

    rng: random.Random
    create: Create
    ttl: StateTtlConfig | None
    root: Path
    clock: Clock = field(default_factory=Clock)
    parallelism: int = 1
    restarts: int = 0
    values: dict[Key, Entry] = field(default_factory=dict)
    lists: dict[Key, list[Entry]] = field(default_factory=dict)
    maps: dict[tuple[Key, str | None], Entry] = field(default_factory=dict)
    reduced: dict[Key, Entry] = field(default_factory=dict)
    means: dict[Key, tuple[list[int], int]] = field(default_factory=dict)
    timers: set[tuple[Key, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.owners = self._fresh_owners()

    def update_values(self) -> None:
        for owner, keys in self._some_keys():
            given = [
                self.rng.choice([None, ("x" * self.rng.randrange(9), 7), (None, None)])
                for _ in keys
            ]
            owner.value.update(batch_of(keys), profiles(given))
            for key, value in zip(keys, given, strict=True):
                self.values.pop(key, None)
                if value is not None:
                    self.values[key] = (value, self.clock.now_ms)

    def clear_values(self) -> None:
        for owner, keys in self._some_keys():
            owner.value.clear(batch_of(keys))
            for key in keys:
                self.values.pop(key, None)

    def add_to_lists(self) -> None:
        for owner, keys in self._some_keys():
            numbers = [self.rng.choice([None, self.rng.randrange(99)]) for _ in keys]
            owner.list.add(batch_of(keys), pa.array(numbers, pa.int64()))
            for key, number in zip(keys, numbers, strict=True):
                self.lists.setdefault(key, []).append((number, self.clock.now_ms))

    def update_lists(self) -> None:
        for owner, keys in self._some_keys():
            keys = list(dict.fromkeys(keys))
            lists = [self.rng.choice([None, [], [1], [2, 3, 4]]) for _ in keys]
            owner.list.update(batch_of(keys), pa.array(lists, pa.list_(pa.int64())))
            for key, numbers in zip(keys, lists, strict=True):
                self.lists[key] = [(number, self.clock.now_ms) for number in numbers or []]

    def clear_lists(self) -> None:
        for owner, keys in self._some_keys():
            owner.list.clear(batch_of(keys))
            for key in keys:
                self.lists.pop(key, None)

    def put_into_maps(self) -> None:
        for owner, keys in self._some_keys():
            map_keys = [self._map_key() for _ in keys]
            values = [self.rng.choice([None, float("inf"), self.rng.random()]) for _ in keys]
            owner.map.put(
                batch_of(keys), pa.array(map_keys, pa.string()), pa.array(values, pa.float64())
            )
            for key, map_key, value in zip(keys, map_keys, values, strict=True):
                self.maps[key, map_key] = (value, self.clock.now_ms)

    def remove_from_maps(self) -> None:
        for owner, keys in self._some_keys():
            map_keys = [self._map_key() for _ in keys]
            owner.map.remove(batch_of(keys), pa.array(map_keys, pa.string()))
            for pair in zip(keys, map_keys, strict=True):
                self.maps.pop(pair, None)

    def clear_maps(self) -> None:
        for owner, keys in self._some_keys():
            owner.map.clear(batch_of(keys))
            for pair in [pair for pair in self.maps if pair[0] in keys]:
                del self.maps[pair]

    def fold(self) -> None:
        for owner, keys in self._some_keys():
            letters = [self.rng.choice("abc") for _ in keys]
            numbers = [self.rng.randrange(99) for _ in keys]
            owner.reduced.add(batch_of(keys), pa.array(letters, pa.string()))
            owner.mean.add(batch_of(keys), pa.array(numbers, pa.int64()))
            for key, letter, number in zip(keys, letters, numbers, strict=True):
                text = self._seen(self.reduced.get(key)) or ""
                self.reduced[key] = (f"{text}{letter}", self.clock.now_ms)
                known = self.means.get(key, ([], 0))
                former = known[0] if self._is_alive(known[1]) else []
                self.means[key] = ([*former, number], self.clock.now_ms)

    def clear_folds(self) -> None:
        for owner, keys in self._some_keys():
            owner.reduced.clear(batch_of(keys))
            for key in keys:
                self.reduced.pop(key, None)

    def register_timers(self) -> None:
        for owner, keys in self._some_keys():
            moments = [self.rng.randrange(-5, 20) for _ in keys]
            owner.timers.register(batch_of(keys), np.array(moments))
            self.timers |= set(zip(keys, moments, strict=True))

    def delete_timers(self) -> None:
        for owner, keys in self._some_keys():
            moments = [self.rng.randrange(-5, 20) for _ in keys]
            owner.timers.delete(batch_of(keys), np.array(moments))
            self.timers -= set(zip(keys, moments, strict=True))

    def fire_timers(self) -> None:
        bound = self.rng.randrange(-5, 20)
        fired: list[tuple[Key, int]] = []
        for owner in self.owners:
            due = owner.timers.take_due(bound)
            fired += [] if due is None else moments_of(due)
        assert sorted(fired, key=str) == sorted(
            (timer for timer in self.timers if timer[1] <= bound), key=str
        )
        self.timers -= set(fired)

    def pass_time(self) -> None:
        self.clock.now_ms += self.rng.choice([1, 20, 49, 50])

    def set_clock_back(self) -> None:
        """Sets the clock back, as a restart on another machine may do.

        Whatever has expired by then is gone for good. An entry updated at a time now in the future
        lives on from that time.
        """
        for _ in range(5):  # memory and disk, to the end and from the beginning
            for owner in self.owners:
                owner.remove_expired(1000)
        self._forget_expired()
        self.clock.now_ms -= self.rng.choice([1, 30, 60])

    def settle(self) -> None:
        """Does what the runtime does between two calls of an operator."""
        for owner in self.owners:
            owner.backend.settle()

    def remove_expired(self) -> None:
        for owner in self.owners:
            owner.remove_expired(self.rng.choice([1, 5, 1000]))

    def restart(self) -> None:
        """Continues from a checkpoint or either savepoint, in files, at any parallelism."""
        self.restarts += 1
        backends = [owner.backend for owner in self.owners]
        root, stored_as = self.root / str(self.restarts), self.rng.choice(list(StoredAs))
        stored = store_states(root, backends, stored_as, MAX_PARALLELISM)
        self.parallelism = self.rng.choice([self.parallelism, self.rng.randint(1, 4)])
        self.owners = self._fresh_owners()
        for index, owner in enumerate(self.owners):
            stored.restore(owner.backend, index, self.parallelism)

    def read_all(self) -> None:
        for owner, keys in self._some_keys():
            values = [None if row is None else tuple(row.values())
                      for row in owner.value.value(batch_of(keys)).to_pylist()]  # fmt: skip
            assert values == [self._seen(self.values.get(key)) for key in keys]
            lists = [[self._seen(e) for e in self._alive(key)] for key in keys]
            assert owner.list.get(batch_of(keys)).to_pylist() == lists
            self._read_maps(owner, keys)
            texts = [self._seen(self.reduced.get(key)) for key in keys]
            assert owner.reduced.get(batch_of(keys)).to_pylist() == texts
            assert owner.mean.get(batch_of(keys)).to_pylist() == [self._mean(k) for k in keys]
            self._renew(set(keys))
        assert sum(len(owner.timers) for owner in self.owners) == len(self.timers)

    def _read_maps(self, owner: Owner, keys: list[Key]) -> None:
        found = owner.map.entries(batch_of(keys)).to_pylist()
        for key, entries in zip(keys, found, strict=True):
            alive = {
                m: v for (k, m), (v, at) in self.maps.items() if k == key and self._is_alive(at)
            }
            assert len(entries) == len(alive)
            assert {entry["key"]: entry["value"] for entry in entries} == alive
        map_keys = [self._map_key() for _ in keys]
        known = [self.maps.get(pair) for pair in zip(keys, map_keys, strict=True)]
        arrays = batch_of(keys), pa.array(map_keys, pa.string())
        assert owner.map.get(*arrays).to_pylist() == [self._seen(entry) for entry in known]
        is_there = [entry is not None and self._is_alive(entry[1]) for entry in known]
        assert owner.map.contains(*arrays).tolist() == is_there

    def _renew(self, keys: set[Key]) -> None:
        """Restarts the time-to-live of the keys just read, if its configuration says so."""
        if self.ttl is None or not self.ttl.renews_on_read:
            return
        now_ms = self.clock.now_ms
        for state in (self.values, self.reduced, self.means):
            for key in keys & state.keys():
                if self._is_alive(state[key][1]):
                    state[key] = (state[key][0], now_ms)
        for key in keys & self.lists.keys():
            self.lists[key] = [(value, now_ms) for value, _ in self._alive(key)]
        for pair, (value, at) in self.maps.items():
            if pair[0] in keys and self._is_alive(at):
                self.maps[pair] = (value, now_ms)

    def _some_keys(self) -> list[tuple[Owner, list[Key]]]:
        """Returns keys, some of them more than once, by the owner of their group."""
        chosen: list[Key] = [
            (self.rng.choice([None, "", "a", "ä"]), self.rng.choice([None, 0, 1, 2]))
            for _ in range(self.rng.randint(0, 12))
        ]
        return [
            (owner, own)
            for index, owner in enumerate(self.owners)
            if (own := [key for key in chosen if self._owner_of(key) == index])
        ]

    def _owner_of(self, key: Key) -> int:
        [group] = key_groups(key_hashes(batch_of([key]), KEY.names), MAX_PARALLELISM).tolist()
        return int(group) * self.parallelism // MAX_PARALLELISM

    def _fresh_owners(self) -> list[Owner]:
        ranges = [range_of(i, self.parallelism, MAX_PARALLELISM) for i in range(self.parallelism)]
        backends = [self.create(groups, MAX_PARALLELISM) for groups in ranges]
        return [Owner.of(backend, self.clock, self.ttl) for backend in backends]

    def _map_key(self) -> str | None:
        return self.rng.choice([None, "", "a", "b", "c", "d"])

    def _is_alive(self, updated_ms: int) -> bool:
        return self.ttl is None or updated_ms > self.clock.now_ms - self.ttl.ttl_ms

    def _alive(self, key: Key) -> list[Entry]:
        return [entry for entry in self.lists.get(key, []) if self._is_alive(entry[1])]

    def _seen(self, entry: Entry | None) -> object:
        return entry[0] if entry is not None and self._is_alive(entry[1]) else None

    def _forget_expired(self) -> None:
        for state in (self.values, self.reduced, self.means, self.maps):
            for key in [key for key, (_, at) in state.items() if not self._is_alive(at)]:
                del state[key]
        self.lists = {key: self._alive(key) for key in self.lists}

    def _mean(self, key: Key) -> float | None:
        numbers, updated_ms = self.means.get(key, ([], 0))
        return sum(numbers) / len(numbers) if numbers and self._is_alive(updated_ms) else None


def context_of(create: Create) -> KeyedStateContext:
    backend = create(KeyGroupRange(0, MAX_PARALLELISM - 1), MAX_PARALLELISM)
    return KeyedStateContext(backend, KEY, lambda: 0)


def batch_of(keys: list[Key]) -> pa.RecordBatch:
    columns = [[key[index] for key in keys] for index in range(len(KEY))]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, KEY, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=KEY)


def profiles(rows: list[tuple[str | None, int | None] | None]) -> pa.Array:
    named = [None if row is None else {"title": row[0], "age": row[1]} for row in rows]
    return pa.array(named, PROFILE)


def moments_of(fired: FiredTimers) -> list[tuple[Key, int]]:
    assert fired.timestamps_ms.tolist() == sorted(fired.timestamps_ms.tolist())
    keys = [tuple(row.values()) for row in fired.keys.to_pylist()]
    return list(zip(keys, fired.timestamps_ms.tolist(), strict=True))
