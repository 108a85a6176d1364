"""What every state backend promises: rows by key, cuts that stay as they were, restores by group.

The dictionaries are the model; a backend that differs from them is wrong.
"""

import random
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import KeyGroupRange, range_of
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    NO_ROW,
    BatchListDescriptor,
    FrozenState,
    Rows,
    StateBackend,
    Table,
    TableDescriptor,
)
from pipelines.state.hashmap import HashMapBackend
from tests.contracts.dict_state_backend import DictBackend, Key, batch_of, tuples
from tests.contracts.rocksdb_slots import AMPLE_BYTES, TINY_BYTES, rocksdb_backends, seeded

MAX_PARALLELISM = 16
ALL_GROUPS = KeyGroupRange(0, MAX_PARALLELISM - 1)
COUNTS = TableDescriptor(
    name="counts",
    key=pa.schema([("user", pa.int64())]),
    value=pa.schema([("count", pa.int64()), ("sum", pa.float64()), ("seen", pa.bool_())]),
    defaults={"count": 0, "sum": 0.5, "seen": False},
    key_group_by=("user",),
)
WINDOWS = TableDescriptor(
    name="windows",
    key=pa.schema([("carrier", pa.string()), ("start", pa.timestamp("ms", "UTC"))]),
    value=pa.schema([("count", pa.int64())]),
    defaults={"count": 0},
    key_group_by=("carrier",),
)
BUFFER = BatchListDescriptor(
    name="buffer",
    schema=pa.schema([("origin", pa.string()), ("delay", pa.int32())]),
    key_group_by=("origin",),
)
PROFILES = TableDescriptor(
    name="profiles",
    key=pa.schema([("user", pa.int64()), ("field", pa.string())]),
    value=pa.schema(
        [
            ("text", pa.string()),
            ("bytes", pa.binary()),
            ("number", pa.int32()),
            ("ratio", pa.float64()),
            ("flag", pa.bool_()),
            ("at", pa.timestamp("ms", "UTC")),
            ("title", pa.large_string()),
        ]
    ),
    defaults={
        "text": None,
        "bytes": None,
        "number": None,
        "ratio": None,
        "flag": None,
        "at": None,
        "title": "none",
    },
    key_group_by=("user",),
)
KEYS_BY_TYPE = [
    (pa.int8(), [-128, 0, 127]),
    (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    (pa.uint64(), [0, 2**63, 2**64 - 1]),
    (pa.bool_(), [True, False]),
    (pa.date32(), [date(1969, 12, 31), date(2013, 1, 1)]),
    (pa.timestamp("us", "UTC"), [datetime(2013, 1, day, tzinfo=UTC) for day in (1, 2)]),
    (pa.string(), ["", "a", "aa", "zürich", "x" * 1000]),
    (pa.large_string(), ["", "JFK"]),
    (pa.binary(), [b"", b"\x00", b"\xff\x00"]),
]
Create = Callable[[KeyGroupRange, int], StateBackend]


BACKENDS = ["hashmap", "dict", "rocksdb", "rocksdb in tiny memory"]


@pytest.fixture(params=BACKENDS)
def create(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Create]:
    match request.param:
        case "hashmap":
            yield HashMapBackend
        case "dict":
            yield DictBackend
        case name:
            memory_bytes = TINY_BYTES if "tiny" in name else AMPLE_BYTES
            with rocksdb_backends(memory_bytes) as backends:
                yield backends


@pytest.fixture
def backend(create: Create) -> StateBackend:
    return create(ALL_GROUPS, MAX_PARALLELISM)


def test_an_unseen_key_gets_one_row_of_defaults_however_often_it_is_repeated(
    backend: StateBackend,
) -> None:
    table = backend.table(COUNTS)

    rows = table.rows_for(users(7, 9, 7, 7))

    assert rows[0] == rows[2] == rows[3] != rows[1]
    assert len(table) == 2
    assert table.read("count", rows).tolist() == [0, 0, 0, 0]
    assert table.read("sum", rows).tolist() == [0.5] * 4
    assert table.read("seen", rows).tolist() == [False] * 4


def test_a_key_keeps_its_row_while_others_come_and_go(backend: StateBackend) -> None:
    table = backend.table(COUNTS)
    row = table.rows_for(users(1))

    for first in range(2, 5000, 500):
        rows = table.rows_for(users(*range(first, first + 500)))
        table.delete(rows[::2])

    assert table.rows_for(users(1)).tolist() == row.tolist()


def test_the_last_of_repeated_writes_stays(backend: StateBackend) -> None:
    table = backend.table(COUNTS)
    rows = table.rows_for(users(5, 5, 6))

    table.write("count", rows, np.array([1, 2, 3]))

    assert table.read("count", rows).tolist() == [2, 2, 3]


def test_what_was_read_does_not_change_with_the_state(backend: StateBackend) -> None:
    table = backend.table(COUNTS)
    rows = table.rows_for(users(5))
    read = table.read("count", rows)

    table.write("count", rows, np.array([9]))

    assert read.tolist() == [0]


def test_a_deleted_key_starts_again_from_the_defaults(backend: StateBackend) -> None:
    table = backend.table(COUNTS)
    rows = table.rows_for(users(1, 2, 3))
    table.write("count", rows, np.array([10, 20, 30]))

    table.delete(rows[[0, 2]])

    assert len(table) == 1
    assert table.read("count", table.rows_for(users(1, 2, 3, 4))).tolist() == [0, 20, 0, 0]


@pytest.mark.parametrize(("key_type", "keys"), KEYS_BY_TYPE, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("has_null", [False, True])
def test_keys_of_every_type_come_back_as_they_were(
    create: Create, key_type: pa.DataType, keys: list[object], has_null: bool
) -> None:
    descriptor = TableDescriptor(
        name="typed",
        key=pa.schema([("key", key_type)]),
        value=pa.schema([("count", pa.int64())]),
        defaults={"count": 0},
        key_group_by=("key",),
    )
    given = [(key,) for key in [*keys, *([None] if has_null else []), *keys]]
    table = create(ALL_GROUPS, MAX_PARALLELISM).table(descriptor)

    rows = table.rows_for(batch_of(given, descriptor.key))

    assert len(table) == len(set(given)) == len(set(rows.tolist()))
    assert tuples(table.keys(rows)) == given


def test_a_null_in_one_key_column_is_a_key_of_its_own(backend: StateBackend) -> None:
    table = backend.table(WINDOWS)
    start = datetime(2013, 1, 1, tzinfo=UTC)
    keys: list[Key] = [("UA", start), (None, start), ("UA", None), (None, None), (None, start)]

    rows = table.rows_for(batch_of(keys, WINDOWS.key))

    assert len(set(rows[:4].tolist())) == 4
    assert rows[4] == rows[1]


def test_rows_up_to_a_bound_are_selected_by_a_key_column(backend: StateBackend) -> None:
    table = backend.table(WINDOWS)
    hours = [datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in range(4)]
    rows = table.rows_for(batch_of([("UA", hour) for hour in hours], WINDOWS.key))
    bound = int(hours[2].timestamp() * 1000)

    assert sorted(table.select_at_most("start", bound)) == sorted(rows[:3].tolist())
    assert table.select_at_most("start", bound - 2 * 3_600_000 - 1).tolist() == []
    table.delete(rows[:1])
    assert sorted(table.select_at_most("start", bound)) == sorted(rows[1:3].tolist())
    late = table.rows_for(batch_of([("AA", hours[0])], WINDOWS.key))
    assert table.select_at_most("start", bound - 7_200_000).tolist() == late.tolist()


def test_a_cut_keeps_what_was_before_it_whatever_follows(backend: StateBackend) -> None:
    table = backend.table(COUNTS)
    rows = table.rows_for(users(*range(100)))
    table.write("count", rows, np.arange(100))

    [frozen] = backend.cut()
    table.write("count", rows, np.full(100, -1))
    table.delete(rows[:50])
    table.write("count", table.rows_for(users(*range(100, 3000))), np.full(2900, -2))

    assert counts_in([frozen]) == {user: user for user in range(100)}
    assert frozen.rows == 100


def test_two_cuts_may_wait_at_the_same_time(backend: StateBackend) -> None:
    table = backend.table(COUNTS)
    rows = table.rows_for(users(1, 2))
    table.write("count", rows, np.array([1, 2]))
    first = backend.cut()
    table.write("count", rows[:1], np.array([10]))
    second = backend.cut()
    table.write("count", rows, np.array([100, 200]))

    assert counts_in(second) == {1: 10, 2: 2}
    assert counts_in(first) == {1: 1, 2: 2}
    assert counts_in(backend.cut()) == {1: 100, 2: 200}


def test_an_empty_state_is_cut_and_restored_as_empty(create: Create) -> None:
    backend = create(ALL_GROUPS, MAX_PARALLELISM)
    backend.table(COUNTS)
    backend.batch_list(BUFFER)

    restored = create(ALL_GROUPS, MAX_PARALLELISM)
    table, buffer = restored.table(COUNTS), restored.batch_list(BUFFER)
    for frozen in backend.cut():
        restored.restore(frozen.name, frozen.batches)

    assert (len(table), len(buffer)) == (0, 0)


def test_snapshot_rows_carry_the_key_group_of_the_stream_key(create: Create) -> None:
    backend = create(ALL_GROUPS, MAX_PARALLELISM)
    hours = [datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in range(20)]
    backend.table(WINDOWS).rows_for(batch_of([("UA", hour) for hour in hours], WINDOWS.key))

    [frozen] = backend.cut()

    assert frozen.schema.field(KEY_GROUP_COLUMN).type == pa.uint16()
    groups = {row[-1] for batch in frozen.batches for row in tuples(batch)}
    assert len(groups) == 1


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5, 16])
def test_a_restore_hands_every_key_to_the_owner_of_its_group(
    create: Create, parallelism: int
) -> None:
    source = create(ALL_GROUPS, MAX_PARALLELISM)
    table = source.table(WINDOWS)
    carriers = [f"carrier {number}" for number in range(200)] + [None]
    start = datetime(2013, 1, 1, tzinfo=UTC)
    rows = table.rows_for(batch_of([(carrier, start) for carrier in carriers], WINDOWS.key))
    table.write("count", rows, np.arange(201))
    [frozen] = source.cut()
    batches = list(frozen.batches)

    owners = [create(groups, MAX_PARALLELISM) for groups in ranges(parallelism)]
    for owner in owners:
        owner.table(WINDOWS)
        owner.restore("windows", iter(batches))

    restored = [contents(owner, WINDOWS) for owner in owners]
    assert sum(len(each) for each in restored) == 201
    assert {k: v for each in restored for k, v in each.items()} == contents(source, WINDOWS)


def test_a_restore_refuses_a_state_that_is_not_declared(backend: StateBackend) -> None:
    with pytest.raises(Rejected, match="forgotten"):
        backend.restore("forgotten", iter([]))


def test_a_restore_names_the_state_and_the_column_that_does_not_fit(
    backend: StateBackend,
) -> None:
    backend.table(COUNTS).rows_for(users(1))
    backend.batch_list(BUFFER).append(0, buffered(("JFK", 1)))
    table_rows, list_rows = (next(frozen.batches) for frozen in backend.cut())

    for state, column, rows in [("counts", "user", table_rows), ("buffer", "delay", list_rows)]:
        with pytest.raises(Rejected, match=f"(?s)(?=.*{state})(?=.*{column})"):
            backend.restore(state, iter([rows.drop_columns([column])]))
        index = rows.schema.get_field_index(column)
        retyped = rows.set_column(index, column, rows.column(column).cast(pa.string()))
        with pytest.raises(Rejected, match=f"(?s)(?=.*{state})(?=.*{column})"):
            backend.restore(state, iter([retyped]))


def test_a_state_may_be_declared_again_only_in_the_same_way(backend: StateBackend) -> None:
    other = TableDescriptor("counts", COUNTS.key, WINDOWS.value, {"count": 0}, ("user",))

    assert backend.table(COUNTS) is backend.table(COUNTS)
    with pytest.raises(Rejected, match="counts"):
        backend.table(other)
    with pytest.raises(Rejected, match="counts"):
        backend.batch_list(BatchListDescriptor("counts", BUFFER.schema, ("origin",)))


def test_a_list_gives_back_the_rows_of_a_namespace_in_order_of_arrival(
    backend: StateBackend,
) -> None:
    buffer = backend.batch_list(BUFFER)
    for delay in range(100):
        buffer.append(delay % 3, buffered(("JFK", delay), ("EWR", -delay)))

    popped = [row for batch in buffer.pop(1) for row in tuples(batch)]

    assert popped == [(o, d) for n in range(1, 100, 3) for o, d in (("JFK", n), ("EWR", -n))]
    assert buffer.pop(1) == []
    assert buffer.namespaces_at_most(5) == [0, 2]
    assert buffer.namespaces_at_most(1) == [0]
    assert len(buffer) == 134


def test_a_list_is_cut_and_restored_with_the_order_of_each_namespace(create: Create) -> None:
    source = create(ALL_GROUPS, MAX_PARALLELISM)
    buffer = source.batch_list(BUFFER)
    for delay in range(900):
        buffer.append(delay % 2, buffered((f"airport {delay % 7}", delay)))
    [frozen] = source.cut()
    buffer.pop(0)
    buffer.append(1, buffered(("too late", 1)))
    batches = list(frozen.batches)

    restored = []
    for groups in ranges(3):
        owner = create(groups, MAX_PARALLELISM)
        target = owner.batch_list(BUFFER)
        owner.restore("buffer", iter(batches))
        restored += [[r[1] for b in target.pop(n) for r in tuples(b)] for n in (0, 1)]

    assert frozen.rows == 900
    assert all(delays == sorted(delays) for delays in restored)
    assert sorted(delay for delays in restored for delay in delays) == list(range(900))


def test_statistics_count_the_live_rows(backend: StateBackend) -> None:
    table = backend.table(COUNTS)
    rows = table.rows_for(users(1, 2, 3))
    table.delete(rows[:1])
    backend.batch_list(BUFFER).append(0, buffered(("JFK", 1)))

    assert backend.statistics().rows == 3
    assert backend.statistics().state_bytes > 0


def test_a_key_that_was_never_seen_is_not_found_and_not_added(backend: StateBackend) -> None:
    table = backend.table(WINDOWS)
    start = datetime(2013, 1, 1, tzinfo=UTC)
    assert table.find(batch_of([("UA", start)], WINDOWS.key)).tolist() == [NO_ROW]
    known = table.rows_for(batch_of([("UA", start), (None, start)], WINDOWS.key))

    asked: list[Key] = [("AA", start), (None, start), ("UA", None), ("UA", start), ("UA", start)]
    found = table.find(batch_of(asked, WINDOWS.key))

    assert found.tolist() == [NO_ROW, known[1], NO_ROW, known[0], known[0]]
    assert len(table) == 2


@pytest.mark.parametrize("null_first", [False, True])
def test_null_is_found_only_where_it_was_added(backend: StateBackend, null_first: bool) -> None:
    table = backend.table(COUNTS)
    null = batch_of([(None,)], COUNTS.key)

    table.rows_for(null if null_first else users(0))

    assert (table.find(null).tolist() == [NO_ROW]) is not null_first
    assert (table.find(users(0)).tolist() == [NO_ROW]) is null_first


@seeded("create", BACKENDS, 10)
def test_values_may_be_null_or_of_any_length(create: Create, seed: int) -> None:
    rng = random.Random(seed)
    backend = create(ALL_GROUPS, MAX_PARALLELISM)
    table = backend.table(PROFILES)
    model: dict[Key, Key] = {}
    cuts: list[tuple[FrozenState, dict[Key, Key]]] = []

    for _ in range(25):
        keys = [(rng.randrange(9), rng.choice(["a", "ä", "a\u0308", None])) for _ in range(8)]
        fresh = [model.get(key, (*[None] * 6, "none")) for key in keys]
        rows = table.rows_for(batch_of(keys, PROFILES.key))
        assert values_at(table, rows) == fresh
        profiles = [random_profile(rng) for _ in keys]
        for field, column in zip(PROFILES.value, zip(*profiles, strict=True), strict=True):
            table.write_arrow(field.name, rows, pa.array(column, field.type))
        model.update(zip(keys, profiles, strict=True))
        if rng.random() < 0.3:
            gone = rng.sample(sorted(model, key=str), rng.randint(1, len(model)))
            table.delete(table.find(batch_of(gone, PROFILES.key)))
            for key in gone:
                del model[key]
        if rng.random() < 0.2:
            cuts.append((backend.cut()[0], dict(model)))
        backend.settle()

    for frozen, expected in [*cuts, (backend.cut()[0], model)]:
        restored = create(ALL_GROUPS, MAX_PARALLELISM)
        table = restored.table(PROFILES)
        restored.restore("profiles", frozen.batches)
        keys = list(expected)
        assert len(table) == len(keys)
        rows = table.find(batch_of(keys, PROFILES.key))
        assert values_at(table, rows) == list(expected.values())


def test_not_a_number_is_a_value_and_not_null(backend: StateBackend) -> None:
    table = backend.table(PROFILES)
    rows = table.rows_for(batch_of([(1, "a"), (2, "a")], PROFILES.key))

    table.write_arrow("ratio", rows, pa.array([float("nan"), None]))

    read = table.read_arrow("ratio", rows)
    assert read.is_null().to_pylist() == [False, True]
    [frozen] = backend.cut()
    assert [c for b in frozen.batches for c in b["ratio"].is_null().to_pylist()] == [False, True]


def test_a_table_may_hold_keys_alone(create: Create) -> None:
    keys_alone = TableDescriptor("timers", WINDOWS.key, pa.schema([]), {}, ("carrier",))
    backend = create(ALL_GROUPS, MAX_PARALLELISM)
    start = datetime(2013, 1, 1, tzinfo=UTC)
    key = batch_of([("UA", start)], WINDOWS.key)
    backend.table(keys_alone).rows_for(key)

    restored = create(ALL_GROUPS, MAX_PARALLELISM)
    table = restored.table(keys_alone)
    restored.restore("timers", backend.cut()[0].batches)

    assert tuples(table.keys(table.find(key))) == tuples(key)


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_a_scan_meets_every_row_that_stays_while_others_come_and_go(
    backend: StateBackend, limit: int
) -> None:
    table = backend.table(COUNTS)
    rows = table.rows_for(users(*range(100)))
    table.delete(rows[10:30])
    met: list[int] = []

    position = None
    for number in range(1000):
        found, position = table.scan(position, limit)
        assert len(found) <= limit
        met += table.keys(found).column("user").to_pylist()
        if position is None:
            break
        table.rows_for(users(1000 + number))
        table.delete(table.find(users(1000 + number)))
        backend.settle()

    assert position is None
    assert set(met) >= {*range(10), *range(30, 100)}
    assert not set(met) & set(range(10, 30))


@seeded("create", BACKENDS, 20)
@pytest.mark.parametrize("descriptor", [COUNTS, WINDOWS], ids=["one number", "text and time"])
def test_cuts_equal_the_model_while_the_owner_goes_on_writing(
    create: Create, descriptor: TableDescriptor, seed: int
) -> None:
    rng = random.Random(seed)
    backend = create(ALL_GROUPS, MAX_PARALLELISM)
    table = backend.table(descriptor)
    model: dict[Key, int] = {}
    readers: list[Reader] = []

    for _ in range(60):
        change(rng, table, descriptor, model)
        if rng.random() < 0.3:
            readers.append(Reader(backend.cut(), descriptor, dict(model)))
            rng.choice([readers[-1].start, lambda: None])()
        backend.settle()

    assert [reader.finish() for reader in readers] == [reader.expected for reader in readers]
    assert contents(backend, descriptor) == model


class Reader(threading.Thread):
    """Consumes one cut beside its owner, or only once it is asked to finish."""

    def __init__(
        self, cut: list[FrozenState], descriptor: TableDescriptor, expected: dict[Key, int]
    ) -> None:
        super().__init__(daemon=True)
        self.expected = expected
        self._cut = cut
        self._width = len(descriptor.key)
        self._found: dict[Key, int] = {}
        self._has_started = False

    def start(self) -> None:
        self._has_started = True
        super().start()

    def run(self) -> None:
        for batch in self._cut[0].batches:
            for row in tuples(batch):
                self._found[row[: self._width]] = int(str(row[self._width]))

    def finish(self) -> dict[Key, int]:
        if not self._has_started:
            self.start()
        self.join(30)
        return self._found


def change(
    rng: random.Random, table: Table, descriptor: TableDescriptor, model: dict[Key, int]
) -> None:
    if model and rng.random() < 0.3:
        gone = rng.sample(sorted(model, key=str), rng.randint(1, len(model)))
        table.delete(table.rows_for(batch_of(gone, descriptor.key)))
        for key in gone:
            del model[key]
        return
    keys = [random_key(rng, descriptor) for _ in range(rng.randint(1, 200))]
    counts = [rng.randint(1, 10**9) for _ in keys]
    table.write("count", table.rows_for(batch_of(keys, descriptor.key)), np.array(counts))
    model.update(zip(keys, counts, strict=True))


def random_key(rng: random.Random, descriptor: TableDescriptor) -> Key:
    if descriptor is COUNTS:
        return (rng.randint(-400, 400),)
    hour = datetime(2013, 1, 1, rng.randrange(24), tzinfo=UTC)
    return (rng.choice(["UA", "AA", "", None, f"carrier {rng.randint(0, 50)}"]), hour)


def contents(backend: StateBackend, descriptor: TableDescriptor) -> dict[Key, object]:
    """The first value column by key, as a cut of the only state holds it."""
    width = len(descriptor.key)
    rows = [row for frozen in backend.cut() for batch in frozen.batches for row in tuples(batch)]
    return {row[:width]: row[width] for row in rows}


def counts_in(cut: list[FrozenState]) -> dict[int, int]:
    users_and_counts = [batch.select(["user", "count"]) for batch in cut[0].batches]
    return {key: count for batch in users_and_counts for key, count in tuples(batch)}


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


def users(*numbers: int) -> pa.RecordBatch:
    return batch_of([(number,) for number in numbers], COUNTS.key)


def buffered(*rows: Key) -> pa.RecordBatch:
    return batch_of(list(rows), BUFFER.schema)


def ranges(parallelism: int) -> list[KeyGroupRange]:
    return [range_of(subtask, parallelism, MAX_PARALLELISM) for subtask in range(parallelism)]
