"""Tests specific to the hashmap backend: collisions, garbage, and the cost of a cut."""

import random
import threading
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.errors import InvariantViolated, Rejected
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.backend import NO_ROW, BatchListDescriptor, TableDescriptor
from pipelines.state.hashing import Hashes, key_hashes
from pipelines.state.in_memory import columns, key_columns
from pipelines.state.in_memory.batch_list import FANOUT
from pipelines.state.in_memory.columns import INITIAL_ROWS, SEGMENT_ROWS, Column
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.in_memory.table import HashMapTable

ALL = KeyGroupRange(0, 127)
ROUTES = TableDescriptor(
    name="routes",
    key=pa.schema([("origin", pa.string()), ("number", pa.int32())]),
    value=pa.schema([("count", pa.int64())]),
    defaults={"count": 0},
    key_group_by=("origin", "number"),
)
USERS = TableDescriptor(
    name="users",
    key=pa.schema([("user", pa.int64())]),
    value=pa.schema([("count", pa.int64()), ("last", pa.int64())]),
    defaults={"count": 0, "last": 0},
    key_group_by=("user",),
)
NAMES = TableDescriptor(
    "names", pa.schema([("name", pa.string())]), ROUTES.value, {"count": 0}, ("name",)
)


@pytest.mark.parametrize("hash_count", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_keys_that_share_a_hash_are_never_merged(seed: int, hash_count: int) -> None:
    rng = random.Random(seed)
    table = backend_with_bad_hash(hash_count).table(ROUTES)
    model: dict[tuple[str | None, int | None], int] = {}

    for _ in range(40):
        keys = [(rng.choice(["JFK", "EWR", None]), rng.choice([0, 1, 2, None])) for _ in range(8)]
        counts = [rng.randint(1, 10**9) for _ in keys]
        table.write("count", table.rows_for(routes(keys)), np.array(counts))
        model.update(zip(keys, counts, strict=True))
        gone = rng.sample(sorted(model, key=str), rng.randint(0, len(model)))
        table.delete(table.find(routes(gone)))
        assert table.find(routes(gone)).tolist() == [NO_ROW] * len(gone)
        model = {key: count for key, count in model.items() if key not in gone}
        assert len(table) == len(model)

    rows = table.rows_for(routes(list(model)))
    assert table.read("count", rows).tolist() == list(model.values())
    assert len(table) == len(model)


def test_the_number_that_has_the_hash_of_null_is_not_null() -> None:
    twin = unmixed(0x9AE16A3B2F90404F)
    table = HashMapBackend(ALL, 128).table(USERS)
    first = table.rows_for(users(twin))
    null = pa.record_batch({"user": pa.array([None], pa.int64())})
    assert table.find(null).tolist() == [NO_ROW]

    rows = table.rows_for(pa.record_batch({"user": pa.array([None, twin], pa.int64())}))

    assert rows[1] == first[0]
    assert rows[0] != rows[1]


def test_a_key_of_a_foreign_group_is_a_bug() -> None:
    table = HashMapBackend(KeyGroupRange(0, 63), 128).table(USERS)

    with pytest.raises(InvariantViolated, match="owner of its group"):
        table.rows_for(users(*range(100)))


def test_deleted_keys_free_the_memory_of_their_texts() -> None:
    backend = HashMapBackend(ALL, 128)
    table = backend.table(NAMES)
    kept = table.rows_for(names("kept", None))
    table.write("count", kept, np.array([7, 8]))
    sizes = []

    for first in range(0, 400_000, 20_000):
        rows = table.rows_for(names(*(f"name {n}" for n in range(first, first + 20_000))))
        if first == 200_000:
            [frozen] = backend.cut()
        table.delete(rows)
        sizes.append(backend.statistics().state_bytes)

    assert max(sizes[10:]) <= 1.5 * max(sizes[:5])
    assert table.keys(kept).column("name").to_pylist() == ["kept", None]
    rows_at_cut = {row["name"]: row["count"] for b in frozen.batches for row in b.to_pylist()}
    expected = {f"name {n}": 0 for n in range(200_000, 220_000)} | {"kept": 7, None: 8}
    assert rows_at_cut == expected


def test_overwritten_texts_free_their_memory() -> None:
    backend = HashMapBackend(ALL, 128)
    table = backend.table(
        TableDescriptor("t", USERS.key, pa.schema([("s", pa.string())]), {"s": None}, ("user",))
    )
    rows = table.rows_for(users(*range(1000)))
    sizes = []

    for number in range(200):
        table.write_arrow("s", rows, pa.array([f"text {number}"] * 1000))
        if number == 150:
            [frozen] = backend.cut()
        sizes.append(backend.statistics().state_bytes)

    assert max(sizes) < 2_000_000  # all texts ever written are 3,000,000 bytes
    assert table.read_arrow("s", rows).to_pylist() == ["text 199"] * 1000
    assert {row["s"] for batch in frozen.batches for row in batch.to_pylist()} == {"text 150"}


def test_no_write_moves_more_than_one_chunk_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(key_columns, "_GARBAGE_MIN_BYTES", 10_000)
    moved_bytes: list[int] = []
    append = columns.TextChunk.append
    monkeypatch.setattr(
        columns.TextChunk,
        "append",
        lambda chunk, wide: (moved_bytes.append(wide.nbytes), append(chunk, wide))[1],
    )
    backend = HashMapBackend(ALL, 128)
    table = backend.table(
        TableDescriptor("t", USERS.key, pa.schema([("s", pa.string())]), {"s": None}, ("user",))
    )
    rng, texts = random.Random(0), {}

    for number in range(300):
        changed = rng.sample(range(3_000), 20)
        rows = table.rows_for(users(*changed))
        moved_bytes.clear()
        table.write_arrow("s", rows, pa.array([f"text {number}"] * 20))
        texts |= dict.fromkeys(changed, f"text {number}")
        assert sum(moved_bytes) <= 10_000 + 1_000

    found = table.read_arrow("s", table.find(users(*texts)))
    assert dict(zip(texts, found.to_pylist(), strict=True)) == texts
    assert backend.statistics().state_bytes < 3 * 24 * len(texts) + 4 * 10_000


def test_a_cut_gives_batches_of_one_segment() -> None:
    backend = filled(3 * SEGMENT_ROWS)

    [frozen] = backend.cut()

    assert frozen.rows == 3 * SEGMENT_ROWS
    assert next(frozen.batches).num_rows == SEGMENT_ROWS


def test_a_segment_is_copied_only_once_for_all_cuts() -> None:
    column = Column(np.int64, 0, threading.Lock())
    column.reserve(3 * SEGMENT_ROWS)
    cuts = [column.freeze(2 * SEGMENT_ROWS) for _ in range(2)]

    column.write(np.array([1]), np.array([5]))
    column.write(np.array([2]), np.array([6]))

    assert [cut.shared.tolist() for cut in cuts] == [[False, True]] * 2
    assert np.shares_memory(cuts[0].take(0), cuts[1].take(0))
    assert column.read(np.array([0, 1, 2])).tolist() == [0, 5, 6]


def test_an_abandoned_cut_causes_no_copy() -> None:
    column = Column(np.int64, 0, threading.Lock())
    column.reserve(SEGMENT_ROWS)
    kept, dropped = column.freeze(SEGMENT_ROWS), column.freeze(SEGMENT_ROWS)
    kept.take(0)
    del dropped

    column.write(np.array([1]), np.array([5]))

    assert column.reader_count == 0


def test_growth_leaves_the_old_array_to_the_cuts() -> None:
    column = Column(np.int64, 0, threading.Lock())
    column.reserve(10)
    cut = column.freeze(10)

    column.reserve(INITIAL_ROWS + 1)

    assert column.reader_count == 0
    column.write(np.arange(10), np.arange(10))
    assert cut.take(0).tolist() == [0] * 10


def test_only_the_column_that_is_written_is_copied() -> None:
    backend = filled(10)
    table = backend.table(USERS)
    assert isinstance(table, HashMapTable)
    [frozen] = backend.cut()

    table.write("count", table.rows_for(users(1)), np.array([9]))

    assert {n: c.reader_count for n, c in table.value_columns.items()} == {"count": 0, "last": 1}
    assert frozen.rows == 10


def test_a_snapshot_of_another_maximum_parallelism_is_refused() -> None:
    [frozen] = filled(100, max_parallelism=64).cut()
    other = HashMapBackend(ALL, 128)
    other.table(USERS)

    with pytest.raises(Rejected, match="maximum parallelism"):
        other.restore("users", frozen.batches)


def test_nulls_among_restored_values_are_refused_by_name() -> None:
    backend = filled(3)
    [batch] = backend.cut()[0].batches
    index = batch.schema.get_field_index("count")
    damaged = batch.set_column(index, "count", pa.array([1, None, 3], pa.int64()))

    with pytest.raises(Rejected, match=r"'users'.*'count'"):
        backend.restore("users", iter([damaged]))


@pytest.mark.parametrize(
    ("descriptor", "named"),
    [
        (TableDescriptor("t", pa.schema([("k", pa.float64())]), ROUTES.value, {"count": 0}, ("k",)),
         "'k' has type double"),
        (TableDescriptor("t", USERS.key, pa.schema([("l", pa.list_(pa.int8()))]), {"l": None},
                         ("user",)), "'l' has type list"),
        (TableDescriptor("t", USERS.key, pa.schema([("s", pa.string())]), {"s": 0}, ("user",)),
         "0 cannot be the default of 's'"),
        (TableDescriptor("t", USERS.key, ROUTES.value, {"count": "x"}, ("user",)),
         "'x' cannot be the default of 'count'"),
        (TableDescriptor("t", USERS.key, ROUTES.value, {}, ("user",)), "'count' has no default"),
        (TableDescriptor("t", USERS.key, ROUTES.value, {"count": 0}, ("carrier",)), "'carrier'"),
        (TableDescriptor("t", USERS.key, ROUTES.value, {"count": 0}, ()), "no column that decides"),
        (TableDescriptor("t", pa.schema([]), ROUTES.value, {"count": 0}, ("k",)), "no key column"),
        (TableDescriptor("t", USERS.key, USERS.key, {"user": 0}, ("user",)), "'user' is declared"),
        (TableDescriptor("t", USERS.key, pa.schema([("__key_group", pa.int8())]),
                         {"__key_group": 0}, ("user",)), "'__key_group' is reserved"),
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_kept_is_refused_when_it_is_declared(
    descriptor: TableDescriptor, named: str
) -> None:
    with pytest.raises(Rejected, match=named):
        HashMapBackend(ALL, 128).table(descriptor)


def test_a_small_slice_in_a_list_does_not_keep_the_large_batch_alive() -> None:
    backend = HashMapBackend(ALL, 128)
    buffer = backend.batch_list(BatchListDescriptor("b", USERS.key, ("user",)))
    large = users(*range(100_000))

    for first in range(0, 100_000, 1000):
        buffer.append(first, large.slice(first, 1000))
        [kept] = buffer.pop(first)
        assert kept.get_total_buffer_size() < 10_000
        buffer.append(first, kept)

    assert backend.statistics().state_bytes == 800_000


def test_many_small_batches_of_a_namespace_are_merged() -> None:
    buffer = HashMapBackend(ALL, 128).batch_list(BatchListDescriptor("b", USERS.key, ("user",)))

    for number in range(1000):
        buffer.append(0, users(number))

    popped = buffer.pop(0)
    assert len(popped) < FANOUT * 4
    assert [user for batch in popped for user in batch.column(0).to_pylist()] == list(range(1000))


def test_large_values_leave_a_table_in_batches_that_an_array_can_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A segment has 65,536 rows, and an array of texts at most 2 GiB."""
    monkeypatch.setattr(columns, "PART_BYTES", 10_000)
    texts = [None if n == 3 else f"{n}" * (n % 400) for n in range(1_000)]
    documents = TableDescriptor(
        "documents", USERS.key, pa.schema([("text", pa.string())]), {"text": None}, ("user",)
    )
    table = HashMapBackend(ALL, 128).table(documents)
    table.write_arrow("text", table.rows_for(users(*range(1_000))), pa.array(texts))

    assert isinstance(table, HashMapTable)
    batches = list(table.freeze().batches)

    assert [text for batch in batches for text in batch.column("text").to_pylist()] == texts
    assert [user for batch in batches for user in batch.column("user").to_pylist()] == [
        *range(1_000)
    ]
    assert all(batch.column("text").nbytes < 10_000 + 2_000 + 4_000 for batch in batches)


def test_timestamps_are_read_and_written_as_integers() -> None:
    last = pa.schema([("last", pa.timestamp("ms", "UTC"))])
    table = HashMapBackend(ALL, 128).table(
        TableDescriptor("seen", USERS.key, last, {"last": -1}, ("user",))
    )
    rows = table.rows_for(users(1, 2))

    table.write("last", rows[:1], np.array([86_400_000]))

    assert table.read("last", rows).tolist() == [86_400_000, -1]
    assert isinstance(table, HashMapTable)
    [batch] = table.freeze().batches
    assert batch.column("last").to_pylist()[0] == datetime(1970, 1, 2, tzinfo=UTC)


def backend_with_bad_hash(hash_count: int) -> HashMapBackend:
    def bad_hash(batch: pa.RecordBatch, columns: Sequence[str]) -> Hashes:
        return key_hashes(batch, columns) % np.uint64(hash_count)

    return HashMapBackend(ALL, 128, hash_keys=bad_hash)


def unmixed(hash_of_key: int) -> int:
    """Returns the 64-bit integer with this hash, by running SplitMix64 backwards."""
    size = 2**64
    x = hash_of_key
    x ^= (x >> 31) ^ (x >> 62)
    x = x * pow(0x94D049BB133111EB, -1, size) % size
    x ^= (x >> 27) ^ (x >> 54)
    x = x * pow(0xBF58476D1CE4E5B9, -1, size) % size
    x ^= (x >> 30) ^ (x >> 60)
    x = (x - 0x9E3779B97F4A7C15) % size
    return x - size if x >= size // 2 else x


def filled(count: int, max_parallelism: int = 128) -> HashMapBackend:
    backend = HashMapBackend(KeyGroupRange(0, max_parallelism - 1), max_parallelism)
    backend.table(USERS).rows_for(users(*range(count)))
    return backend


def users(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"user": pa.array(numbers, pa.int64())})


def names(*texts: str | None) -> pa.RecordBatch:
    return pa.record_batch({"name": pa.array(texts, pa.string())})


def routes(keys: Sequence[tuple[str | None, int | None]]) -> pa.RecordBatch:
    columns = [[key[index] for key in keys] for index in range(2)]
    arrays = [pa.array(c, t) for c, t in zip(columns, ROUTES.key.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROUTES.key)
