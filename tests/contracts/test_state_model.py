"""Tables and batch lists against dictionaries: random operations, cuts and restores, by seed.

The dictionary is right: a backend that differs from it is wrong. `test_keyed_state` has its own
model for the states of functions, time-to-live and timers, `test_state_increments` for increments.
"""

import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.key_groups import KeyGroupRange, range_of
from pipelines.state.backend import KEY_GROUP_COLUMN, FrozenState, Rows, StateBackend, Table
from tests.contracts.rocksdb_slots import seeded
from tests.contracts.state_tables import (
    ALL_GROUPS,
    BACKENDS,
    DEFAULTS,
    EVENTS,
    KEY_SCHEMAS,
    MAX_PARALLELISM,
    NUMBER,
    PROFILES,
    TEXT,
    VALUES,
    WINDOWED,
    Build,
    Key,
    backends_named,
    batch_of,
    by_namespace,
    events,
    group_of,
    keys_of,
    pairs_of,
    table_of,
)

DEADLINE_S = 20.0
Model = dict[Key, tuple[int, float, bool, int]]  # the values in the order of VALUES


@pytest.fixture(params=BACKENDS)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    with backends_named(request.param, monkeypatch) as build:
        yield build


@KEY_SCHEMAS
@seeded("build", BACKENDS, 12)
def test_a_table_matches_a_dictionary_and_no_cut_changes_later(
    build: Build, key: pa.Schema, seed: int
) -> None:
    rng = random.Random(seed)
    owner = Owner(rng, build(ALL_GROUPS), key, key_count=rng.choice([3, 40, 200]))
    cuts: list[PendingCut] = []

    for _ in range(60):
        match rng.random():
            case p if p < 0.55:
                owner.update()
            case p if p < 0.75:
                owner.delete()
            case p if p < 0.90:
                cuts.append(owner.cut())
            case p if p < 0.95 and cuts:
                cuts.pop(rng.randrange(len(cuts)))  # dropped unread
            case _ if cuts:
                rng.choice(cuts).read_some(rng.randint(1, 3))
        owner.check()

    for pending in cuts:
        pending.check()


@pytest.mark.slow
@KEY_SCHEMAS
@seeded("build", BACKENDS, 4)
def test_cuts_may_be_read_on_another_thread_while_the_owner_writes(
    build: Build, key: pa.Schema, seed: int, frequent_switches: None
) -> None:
    rng = random.Random(seed)
    owner = Owner(rng, build(ALL_GROUPS), key, key_count=300)
    owner.update()
    readers: list[Reader] = []

    for _ in range(12):
        readers.append(Reader(owner.cut()))
        for _ in range(rng.randint(1, 6)):
            rng.choice([owner.update, owner.update, owner.delete])()

    for reader in readers:
        reader.check()
    owner.check()


@KEY_SCHEMAS
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 2), (1, 4), (4, 1)])
def test_a_snapshot_can_be_restored_at_any_parallelism(
    build: Build, key: pa.Schema, before: int, after: int
) -> None:
    rng = random.Random(before * 1000 + after)
    ranges = [range_of(index, before, MAX_PARALLELISM) for index in range(before)]
    old = [Owner(rng, build(own), key, key_count=200, groups=own) for own in ranges]
    for owner in old:
        owner.update()
    snapshots = [owner.backend.cut()[0] for owner in old]
    pieces = [list(snapshot.batches) for snapshot in snapshots]

    new: list[Model] = []
    for index in range(after):
        backend = build(range_of(index, after, MAX_PARALLELISM))
        table = backend.table(table_of(key))
        for piece in pieces:
            backend.restore("table", piece)
        [frozen] = backend.cut()
        new.append(model_of(key, frozen.batches))
        assert len(table) == len(new[-1]) == frozen.rows

    whole: Model = {}
    for owner in old:
        whole |= owner.model
    assert sum(map(len, new)) == len(whole)
    assert {k: v for part in new for k, v in part.items()} == whole


def test_a_restored_table_continues_from_the_snapshot(build: Build) -> None:
    owner = Owner(random.Random(1), build(ALL_GROUPS), TEXT, key_count=50)
    owner.update()
    [frozen] = owner.backend.cut()
    restored = Owner(random.Random(2), build(ALL_GROUPS), TEXT, key_count=50)

    restored.backend.restore("table", frozen.batches)
    restored.model = dict(owner.model)

    for _ in range(10):
        restored.update()
        restored.delete()
        restored.check()


@seeded("build", BACKENDS, 20)
def test_a_batch_list_keeps_its_order_and_no_cut_changes_later(build: Build, seed: int) -> None:
    rng = random.Random(seed)
    backend = build(ALL_GROUPS)
    state = backend.batch_list(EVENTS)
    model: dict[int, list[tuple[str, int]]] = {}
    cuts: list[tuple[FrozenState, dict[int, list[tuple[str, int]]]]] = []

    for number in range(50):
        namespace = rng.randint(-3, 3)
        match rng.random():
            case p if p < 0.6:
                rows = [(rng.choice("abcde"), number * 10 + i) for i in range(rng.randint(0, 4))]
                state.append(namespace, events(*rows))
                if rows:
                    model[namespace] = model.get(namespace, []) + rows
            case p if p < 0.8:
                popped = [row for batch in state.pop(namespace) for row in pairs_of(batch)]
                assert popped == model.pop(namespace, [])
            case _:
                cuts.append((backend.cut()[0], {n: list(rows) for n, rows in model.items()}))
        assert len(state) == sum(map(len, model.values()))
        assert state.namespaces_at_most(namespace) == sorted(n for n in model if n <= namespace)

    for frozen, expected in cuts:
        assert frozen.rows == sum(map(len, expected.values()))
        assert by_namespace(list(frozen.batches)) == expected


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 1)])
def test_a_batch_list_keeps_its_order_at_any_parallelism(
    build: Build, before: int, after: int
) -> None:
    rng = random.Random(after)
    stream = [(f"key {rng.randrange(50)}", n) for n in range(400)]
    pieces: list[list[pa.RecordBatch]] = []
    for index in range(before):
        groups = range_of(index, before, MAX_PARALLELISM)
        backend = build(groups)
        for start in range(0, len(stream), 7):
            mine = [row for row in stream[start : start + 7] if group_of(row[0]) in groups]
            backend.batch_list(EVENTS).append(rng.randrange(3), events(*mine))
        pieces.append(list(backend.cut()[0].batches))
    expected = by_namespace([batch for piece in pieces for batch in piece])

    found: dict[int, list[tuple[str, int]]] = {}
    for index in range(after):
        groups = range_of(index, after, MAX_PARALLELISM)
        backend = build(groups)
        state = backend.batch_list(EVENTS)
        for piece in pieces:
            backend.restore("events", piece)
        for namespace in state.namespaces_at_most(99):
            rows = [row for batch in state.pop(namespace) for row in pairs_of(batch)]
            assert rows == [r for r in expected[namespace] if group_of(r[0]) in groups]
            found[namespace] = found.get(namespace, []) + rows

    assert {n: sorted(rows) for n, rows in found.items()} == {
        n: sorted(rows) for n, rows in expected.items()
    }


@seeded("build", BACKENDS, 10)
def test_values_may_be_null_or_of_any_length(build: Build, seed: int) -> None:
    rng = random.Random(seed)
    backend = build(ALL_GROUPS)
    table = backend.table(PROFILES)
    model: dict[Key, Key] = {}
    cuts: list[tuple[FrozenState, dict[Key, Key]]] = []

    for _ in range(25):
        keys = [(rng.randrange(9), rng.choice(["a", "ä", "a\u0308", None])) for _ in range(8)]
        fresh = [model.get(key, (*[None] * 6, "none")) for key in keys]
        rows = table.rows_for(batch_of(PROFILES.key, keys))
        assert values_at(table, rows) == fresh
        profiles = [random_profile(rng) for _ in keys]
        for of, column in zip(PROFILES.value, zip(*profiles, strict=True), strict=True):
            table.write_arrow(of.name, rows, pa.array(column, of.type))
        model.update(zip(keys, profiles, strict=True))
        if rng.random() < 0.3:
            gone = rng.sample(sorted(model, key=str), rng.randint(1, len(model)))
            table.delete(table.find(batch_of(PROFILES.key, gone)))
            for key in gone:
                del model[key]
        if rng.random() < 0.2:
            cuts.append((backend.cut()[0], dict(model)))
        backend.settle()

    for frozen, expected in [*cuts, (backend.cut()[0], model)]:
        restored = build(ALL_GROUPS)
        table = restored.table(PROFILES)
        restored.restore("profiles", frozen.batches)
        keys = list(expected)
        assert len(table) == len(keys)
        rows = table.find(batch_of(PROFILES.key, keys))
        assert values_at(table, rows) == list(expected.values())


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Makes threads take turns after microseconds, so that a race has thousands of chances."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@dataclass
class PendingCut:
    """A cut not read yet, with its expected rows."""

    key: pa.Schema
    frozen: FrozenState
    expected: Model
    read: list[pa.RecordBatch] = field(default_factory=list)

    def read_some(self, count: int) -> None:
        self.read += islice(self.frozen.batches, count)

    def check(self) -> None:
        self.read += self.frozen.batches
        assert self.frozen.rows == len(self.expected)
        assert model_of(self.key, self.read) == self.expected


class Reader:
    """Reads a cut on a thread of its own."""

    def __init__(self, cut: PendingCut) -> None:
        self._cut = cut
        self._thread = threading.Thread(target=cut.read_some, args=(sys.maxsize,))
        self._thread.start()

    def check(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        self._cut.check()


class Owner:
    """Random operations on a table and on a dictionary, side by side."""

    def __init__(
        self,
        rng: random.Random,
        backend: StateBackend,
        key: pa.Schema,
        key_count: int,
        groups: KeyGroupRange = ALL_GROUPS,
    ) -> None:
        self.rng, self.backend, self.key, self.key_count = rng, backend, key, key_count
        self.groups = groups
        self.table: Table = backend.table(table_of(key))
        self.model: Model = {}

    def update(self) -> None:
        keys = [self._random_key() for _ in range(self.rng.randint(1, self.key_count))]
        keys = [key for key in keys if self._group(key) in self.groups]
        if not keys:
            return
        batch = batch_of(self.key, keys)
        if self.rng.random() < 0.5:
            hashes = self.table.group_hashes(batch) if self.rng.random() < 0.5 else None
            seen = set(self.model)
            unseen = [key not in seen and not seen.add(key) for key in keys]  # type: ignore[func-returns-value]
            entered, is_new = self.table.enter(batch, hashes)
            assert is_new.tolist() == unseen
            assert entered.tolist() == self.table.rows_for(batch).tolist()
        rows = self.table.rows_for(batch)
        self._check_values(keys, rows)
        values = [
            (
                self.rng.randrange(1000),
                self.rng.random(),
                self.rng.random() < 0.5,
                self.rng.randrange(99),
            )
            for _ in keys
        ]
        for name, column in zip(VALUES.names, zip(*values, strict=True), strict=True):
            self.table.write(name, rows, np.array(column))
        self.model.update(zip(keys, values, strict=True))
        self.backend.settle()

    def delete(self) -> None:
        gone = self.rng.sample(list(self.model), self.rng.randint(0, len(self.model)) // 2)
        if gone:
            self.table.delete(self.table.rows_for(batch_of(self.key, gone)))
        for key in gone:
            del self.model[key]
        self.backend.settle()

    def cut(self) -> PendingCut:
        return PendingCut(self.key, self.backend.cut()[0], dict(self.model))

    def check(self) -> None:
        assert len(self.table) == len(self.model)
        keys = list(self.model)
        if keys:
            rows = self.table.rows_for(batch_of(self.key, keys))
            assert len(set(rows.tolist())) == len(keys)
            assert keys_of(self.table.keys(rows)) == keys
            self._check_values(keys, rows)

    def _check_values(self, keys: list[Key], rows: np.ndarray) -> None:
        read = [self.table.read(name, rows).tolist() for name in VALUES.names]
        fresh = tuple(DEFAULTS.values())
        assert list(zip(*read, strict=True)) == [self.model.get(key, fresh) for key in keys]

    def _random_key(self) -> Key:
        number = self.rng.randrange(self.key_count) - self.key_count // 2
        if self.key is NUMBER:
            return (number,)
        name = f"ключ {number // 3}" if self.key is WINDOWED else f"ключ {number}"
        return (name, 1000 * (number % 3)) if self.key is WINDOWED else (name,)

    def _group(self, key: Key) -> int:
        return group_of(key[0])


def model_of(key: pa.Schema, batches: "Iterator[pa.RecordBatch] | list[pa.RecordBatch]") -> Model:
    """Also checks that no key comes twice and that each has its own key group."""
    model: Model = {}
    for batch in batches:
        keys = keys_of(batch.select(key.names))
        assert not model.keys() & set(keys)
        assert len(set(keys)) == len(keys)
        groups = [group_of(each[0]) for each in keys]
        assert batch.column(KEY_GROUP_COLUMN).to_pylist() == groups
        model.update(zip(keys, keys_of(batch.select(VALUES.names)), strict=True))
    return model


def values_at(table: Table, rows: Rows) -> list[Key]:
    columns = [table.read_arrow(name, rows).to_pylist() for name in PROFILES.value.names]
    return list(zip(*columns, strict=True))


def random_profile(rng: random.Random) -> Key:
    return (
        rng.choice([None, "", "x" * rng.randint(0, 300), "zürich"]),
        rng.choice([None, b"", b"\x00\xff"]),
        rng.choice([None, 0, -(2**31)]),
        rng.choice([None, 0.0, -1.5, float("inf")]),
        rng.choice([None, True, False]),
        rng.choice([None, datetime(2013, 1, 1, rng.randrange(24), tzinfo=UTC)]),
        rng.choice(["Dr.", ""]),
    )
