"""The contract of state backends: a dictionary that can be frozen at any time, and dealt again."""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import KeyGroupRange, range_of
from pipelines.state import columns, key_index
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    BatchListDescriptor,
    FrozenState,
    StateBackend,
    Table,
    TableDescriptor,
)
from pipelines.state.hashing import key_groups, key_hashes
from pipelines.state.hashmap import HashMapBackend
from tests.contracts.rocksdb_slots import AMPLE_BYTES, TINY_BYTES, rocksdb_backends, seeded

MAX_PARALLELISM = 128
ALL_GROUPS = KeyGroupRange(0, MAX_PARALLELISM - 1)
DEADLINE_S = 20.0

VALUES = pa.schema(
    [
        ("count", pa.int64()),
        ("total", pa.float64()),
        ("late", pa.bool_()),
        ("at", pa.timestamp("us")),
    ]
)
DEFAULTS: dict[str, int | float | bool] = {"count": 0, "total": -1.5, "late": True, "at": 7}
NUMBER = pa.schema([("id", pa.int64())])
TEXT = pa.schema([("name", pa.string())])
WINDOWED = pa.schema([("name", pa.string()), ("window_end", pa.timestamp("ms"))])
KEY_SCHEMAS = pytest.mark.parametrize(
    "key", [NUMBER, TEXT, WINDOWED], ids=["int", "text", "window"]
)
EVENTS = BatchListDescriptor(
    "events", pa.schema([("name", pa.string()), ("amount", pa.int64())]), ("name",)
)

Key = tuple[object, ...]
Model = dict[Key, tuple[int, float, bool, int]]  # the values in the order of VALUES
Build = Callable[[KeyGroupRange], StateBackend]


BACKENDS = ["hashmap", "hashmap in tiny segments", "rocksdb", "rocksdb in tiny memory"]


@pytest.fixture(params=BACKENDS)
def build(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Build]:
    """Tiny segments and indexes: what otherwise takes 100,000 keys happens with a dozen."""
    if request.param.startswith("rocksdb"):
        memory_bytes = TINY_BYTES if "tiny" in request.param else AMPLE_BYTES
        with rocksdb_backends(memory_bytes) as backends:
            yield lambda groups: backends(groups, MAX_PARALLELISM)
        return
    if request.param == "hashmap in tiny segments":
        monkeypatch.setattr(columns, "SEGMENT_BITS", 2)
        monkeypatch.setattr(columns, "SEGMENT_ROWS", 4)
        monkeypatch.setattr(columns, "INITIAL_ROWS", 4)
        monkeypatch.setattr(key_index, "INITIAL_CAPACITY", 4)
    yield lambda groups: HashMapBackend(groups, MAX_PARALLELISM)


@KEY_SCHEMAS
@seeded("build", BACKENDS, 20)
def test_it_is_a_dictionary_and_every_cut_stays_as_it_was(
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
def test_a_snapshot_can_be_dealt_to_any_number_of_subtasks(
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


def test_a_restored_table_goes_on_where_the_snapshot_was(build: Build) -> None:
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


def test_a_fresh_row_holds_the_defaults(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))

    rows = table.rows_for(numbers(5, 6))

    assert {name: table.read(name, rows).tolist() for name in VALUES.names} == {
        name: [default, default] for name, default in DEFAULTS.items()
    }


def test_repeats_within_a_batch_are_one_row(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))

    rows = table.rows_for(numbers(5, 6, 5, 5))

    assert len(set(rows.tolist())) == len(table) == 2
    assert rows[0] == rows[2] == rows[3]


def test_where_rows_repeat_the_last_value_stays(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    rows = table.rows_for(numbers(5, 6, 5))

    table.write("count", rows, np.array([1, 2, 3]))

    assert table.read("count", rows).tolist() == [3, 2, 3]


def test_what_was_read_is_a_copy(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    rows = table.rows_for(numbers(1))
    before = table.read("count", rows)

    table.write("count", rows, np.array([9]))

    assert before.tolist() == [0]


def test_a_deleted_key_comes_back_with_the_defaults(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    rows = table.rows_for(numbers(5, 6))
    table.write("count", rows, np.array([50, 60]))

    table.delete(rows[:1])
    fresh = table.rows_for(numbers(5, 7, 6))

    assert len(table) == 3
    assert table.read("count", fresh).tolist() == [0, 0, 60]


def test_deleting_nothing_changes_nothing(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    rows = table.rows_for(numbers(5))

    table.delete(rows[:0])

    assert len(table) == 1


def test_row_numbers_stay_valid_while_the_table_grows(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    first = table.rows_for(numbers(1, 2, 3))

    table.rows_for(numbers(*range(10_000)))

    assert table.keys(first).column("id").to_pylist() == [1, 2, 3]
    assert table.rows_for(numbers(1, 2, 3)).tolist() == first.tolist()


@pytest.mark.parametrize("number", [7046029254386353131, 0, -1, 2**63 - 1, -(2**63)])
def test_no_number_is_special(build: Build, number: int) -> None:
    """The first of them has the hash 0."""
    table = build(ALL_GROUPS).table(table_of(NUMBER))
    neighbours = table.rows_for(numbers(*range(10, 20)))
    rows = table.rows_for(numbers(number, 3, number))
    table.write("count", rows[:1], np.array([8]))

    found = table.read("count", table.rows_for(numbers(number))).tolist()
    table.delete(rows[:1])
    after = table.read("count", table.rows_for(numbers(number))).tolist()

    assert (found, after) == ([8], [0])
    assert len(table) == 12
    assert table.keys(neighbours).column("id").to_pylist() == list(range(10, 20))


def test_dictionary_encoded_keys_are_the_same_keys(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(TEXT))
    plain = pa.record_batch({"name": ["a", "b", "a"]})
    encoded = pa.record_batch({"name": plain.column("name").dictionary_encode()})

    assert table.rows_for(plain).tolist() == table.rows_for(encoded).tolist()
    assert len(table) == 2


def test_due_windows_are_found_by_their_end(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(WINDOWED))
    ends = pa.array([10, 20, 30, 20], pa.timestamp("ms"))
    keys = pa.RecordBatch.from_arrays([pa.array(["a", "b", "c", "d"]), ends], schema=WINDOWED)
    rows = table.rows_for(keys)
    table.delete(rows[3:])

    due = table.select_at_most("window_end", 20)

    assert sorted(table.keys(due).column("name").to_pylist()) == ["a", "b"]
    assert table.select_at_most("window_end", 9).tolist() == []


def test_a_cut_says_what_it_is(build: Build) -> None:
    backend = build(ALL_GROUPS)
    backend.table(table_of(NUMBER)).rows_for(numbers(1, 2, 3))
    backend.batch_list(EVENTS).append(5, events(("a", 1)))

    table, batches = backend.cut()

    assert (table.name, table.kind, table.rows) == ("table", "table", 3)
    assert (batches.name, batches.kind, batches.rows) == ("events", "batches", 1)
    assert table.schema == pa.schema([*NUMBER, *VALUES, (KEY_GROUP_COLUMN, pa.uint16())])
    added = [("__namespace", pa.int64()), (KEY_GROUP_COLUMN, pa.uint16())]
    assert batches.schema == pa.schema([*EVENTS.schema, *(pa.field(*a) for a in added)])
    for frozen in (table, batches):
        assert all(batch.schema == frozen.schema for batch in frozen.batches)


def test_states_that_hold_nothing_are_cut_to_nothing(build: Build) -> None:
    backend = build(ALL_GROUPS)
    backend.table(table_of(NUMBER))
    backend.batch_list(EVENTS)

    assert [(frozen.rows, list(frozen.batches)) for frozen in backend.cut()] == [(0, []), (0, [])]


def test_the_key_group_comes_from_the_key_of_the_stream_alone(build: Build) -> None:
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(WINDOWED))
    ends = pa.array(range(20), pa.timestamp("ms"))
    table.rows_for(pa.RecordBatch.from_arrays([pa.array(["a"] * 20), ends], schema=WINDOWED))

    [frozen] = backend.cut()
    groups = {
        group for batch in frozen.batches for group in batch.column(KEY_GROUP_COLUMN).to_pylist()
    }

    assert groups == {group_of("a")}


def test_declaring_again_gives_the_same_state(build: Build) -> None:
    backend = build(ALL_GROUPS)
    backend.table(table_of(NUMBER)).rows_for(numbers(1))
    backend.batch_list(EVENTS).append(1, events(("a", 1)))

    assert len(backend.table(table_of(NUMBER))) == 1
    assert len(backend.batch_list(EVENTS)) == 1


def test_declaring_one_name_for_two_things_is_refused(build: Build) -> None:
    backend = build(ALL_GROUPS)
    backend.table(table_of(NUMBER))

    with pytest.raises(Rejected, match="'table' is declared twice, and differently"):
        backend.table(table_of(TEXT))
    with pytest.raises(Rejected, match="'table' is declared twice, and differently"):
        backend.batch_list(BatchListDescriptor("table", EVENTS.schema, ("name",)))


def test_a_snapshot_of_an_unknown_state_is_refused(build: Build) -> None:
    with pytest.raises(Rejected, match="a state 'gone' that the operator does not have"):
        build(ALL_GROUPS).restore("gone", [])


@pytest.mark.parametrize("column", [*NUMBER.names, KEY_GROUP_COLUMN])
def test_a_snapshot_that_lacks_a_column_is_refused_by_name(build: Build, column: str) -> None:
    snapshot = one_row_snapshot(build)
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))

    with pytest.raises(Rejected, match=f"of the state 'table' lacks the column '{column}'"):
        backend.restore("table", [snapshot.drop_columns([column])])
    assert len(table) == 0


@pytest.mark.parametrize("column", [*NUMBER.names, *VALUES.names, KEY_GROUP_COLUMN])
def test_a_column_of_another_type_is_refused_by_name_and_types(build: Build, column: str) -> None:
    snapshot = one_row_snapshot(build)
    index = snapshot.schema.get_field_index(column)
    altered = snapshot.set_column(index, column, pa.array(["x"]))
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))

    with pytest.raises(Rejected) as refused:
        backend.restore("table", [altered])

    assert str(refused.value) == (
        f"The column '{column}' of the state 'table' is string in the snapshot and "
        f"{snapshot.schema.field(index).type} in the operator."
    )
    assert len(table) == 0


def test_columns_in_another_order_are_the_same_columns(build: Build) -> None:
    snapshot = one_row_snapshot(build)
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))

    backend.restore("table", [snapshot.select(snapshot.schema.names[::-1])])

    assert table.read("count", table.rows_for(numbers(1))).tolist() == [42]


def test_null_is_a_key_of_its_own(build: Build) -> None:
    table = build(ALL_GROUPS).table(table_of(NUMBER))

    rows = table.rows_for(pa.RecordBatch.from_arrays([pa.array([0, None, None])], schema=NUMBER))

    assert rows[0] != rows[1] == rows[2]
    assert len(table) == 2


def test_statistics_grow_with_the_rows(build: Build) -> None:
    backend = build(ALL_GROUPS)
    empty = backend.statistics()
    backend.table(table_of(NUMBER)).rows_for(numbers(*range(5000)))
    backend.batch_list(EVENTS).append(1, events(("a", 1), ("b", 2)))

    assert (empty.rows, empty.state_bytes) == (0, 0)
    assert backend.statistics().rows == 5002
    assert backend.statistics().state_bytes >= 5000 * 8


def test_keys_that_come_and_go_do_not_make_the_state_grow(build: Build) -> None:
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))
    sizes: list[int] = []

    for number in range(30):
        rows = table.rows_for(numbers(*range(number * 1000, number * 1000 + 1000)))
        sizes.append(backend.statistics().state_bytes)
        table.delete(rows)

    assert len(table) == 0
    assert sizes[-1] == sizes[0]


@seeded("build", BACKENDS, 40)
def test_a_batch_list_keeps_order_and_every_cut_stays_as_it_was(build: Build, seed: int) -> None:
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
def test_a_batch_list_can_be_dealt_to_any_number_of_subtasks_in_order(
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


def test_a_restored_batch_list_is_as_large_as_it_was(build: Build) -> None:
    backend, restored = build(ALL_GROUPS), build(ALL_GROUPS)
    restored.batch_list(EVENTS)
    for namespace in range(100):
        backend.batch_list(EVENTS).append(namespace, events(*[("a", n) for n in range(50)]))

    restored.restore("events", backend.cut()[0].batches)

    before, after = backend.statistics(), restored.statistics()
    assert before.rows == after.rows
    assert 0.5 < after.state_bytes / before.state_bytes < 2


@pytest.mark.parametrize("column", ["__namespace", KEY_GROUP_COLUMN, "amount"])
def test_a_snapshot_of_a_batch_list_that_lacks_a_column_is_refused(
    build: Build, column: str
) -> None:
    backend = build(ALL_GROUPS)
    backend.batch_list(EVENTS).append(1, events(("a", 1)))
    [batch] = backend.cut()[0].batches

    with pytest.raises(Rejected, match=f"of the state 'events' lacks the column '{column}'"):
        backend.restore("events", [batch.drop_columns([column])])


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns after microseconds, so that a race has thousands of chances."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@dataclass
class PendingCut:
    """A cut that nobody has read yet, and what it must hold."""

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
        rows = self.table.rows_for(batch_of(self.key, keys))
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


def table_of(key: pa.Schema) -> TableDescriptor:
    return TableDescriptor("table", key, VALUES, DEFAULTS, (key.names[0],))


def batch_of(schema: pa.Schema, keys: list[Key]) -> pa.RecordBatch:
    arrays = [
        pa.array(column, f.type) for column, f in zip(zip(*keys, strict=True), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def keys_of(batch: pa.RecordBatch) -> list[Key]:
    plain = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
    return list(zip(*(column.to_pylist() for column in plain), strict=True))


def model_of(key: pa.Schema, batches: "Iterator[pa.RecordBatch] | list[pa.RecordBatch]") -> Model:
    """Checks on the way that no key comes twice and that each has its own key group."""
    model: Model = {}
    for batch in batches:
        keys = keys_of(batch.select(key.names))
        assert not model.keys() & set(keys)
        assert len(set(keys)) == len(keys)
        groups = [group_of(each[0]) for each in keys]
        assert batch.column(KEY_GROUP_COLUMN).to_pylist() == groups
        model.update(zip(keys, keys_of(batch.select(VALUES.names)), strict=True))
    return model


@cache
def group_of(stream_key: object) -> int:
    batch = pa.record_batch({"key": [stream_key]})
    return int(key_groups(key_hashes(batch, ("key",)), MAX_PARALLELISM)[0])


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=NUMBER)


def events(*rows: tuple[str, int]) -> pa.RecordBatch:
    names, amounts = [name for name, _ in rows], [amount for _, amount in rows]
    arrays = [pa.array(names, pa.string()), pa.array(amounts, pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS.schema)


def pairs_of(batch: pa.RecordBatch) -> list[tuple[str, int]]:
    return [(row["name"], row["amount"]) for row in batch.to_pylist()]


def by_namespace(batches: list[pa.RecordBatch]) -> dict[int, list[tuple[str, int]]]:
    found: dict[int, list[tuple[str, int]]] = {}
    for batch in batches:
        for namespace, row in zip(
            batch.column("__namespace").to_pylist(), pairs_of(batch), strict=True
        ):
            found.setdefault(namespace, []).append(row)
    return found


def one_row_snapshot(build: Build) -> pa.RecordBatch:
    backend = build(ALL_GROUPS)
    table = backend.table(table_of(NUMBER))
    table.write("count", table.rows_for(numbers(1)), np.array([42]))
    [frozen] = backend.cut()
    [batch] = frozen.batches
    return batch
