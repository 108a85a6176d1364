"""Where a RocksDB table reads: if all rows are in memory, they never pass through the database."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.backend import NO_ROW, StateBackend, Table, TableDescriptor
from pipelines.state.on_disk.rocksdb_table import KeyFilter
from pipelines.state.on_disk.sorted_files import SortedFiles
from tests.contracts.rocksdb_slots import TINY_BYTES, RocksDbBackends, rocksdb_backends

COUNTS = TableDescriptor(
    name="counts",
    key=pa.schema([("user", pa.int64())]),
    value=pa.schema([("count", pa.int64())]),
    defaults={"count": 0},
    key_group_by=("user",),
)
USERS = np.arange(100)


@pytest.fixture
def ample() -> Iterator[RocksDbBackends]:
    with rocksdb_backends() as backends:
        yield backends


def test_a_snapshot_of_rows_in_memory_writes_no_database_files(ample: RocksDbBackends) -> None:
    backend = backend_of(ample)
    add(backend.table(COUNTS), USERS, 1)

    rows = snapshot(backend)

    assert rows == dict.fromkeys(range(100), 1)
    assert not list(ample.slot.directory.path.glob("*/*.sst"))


def test_a_snapshot_shows_the_state_of_its_cut_despite_later_writes(
    ample: RocksDbBackends,
) -> None:
    backend = backend_of(ample)
    table = backend.table(COUNTS)
    add(table, USERS, 1)
    backend.settle()

    [frozen] = backend.cut()
    add(table, np.arange(50, 150), 1)
    table.delete(table.find(users(USERS[:10])))
    backend.settle()

    assert frozen.rows == 100
    assert counts(frozen.batches) == dict.fromkeys(range(100), 1)
    assert snapshot(backend) == {u: 2 if 50 <= u < 100 else 1 for u in range(10, 150)}


def test_rows_evicted_from_memory_are_in_the_snapshot() -> None:
    with rocksdb_backends(TINY_BYTES) as tiny:
        backend = backend_of(tiny)
        add(backend.table(COUNTS), USERS, 1)
        backend.settle()

        assert snapshot(backend) == dict.fromkeys(range(100), 1)


def test_evicted_rows_are_found_and_new_keys_are_rarely_looked_up_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    get = SortedFiles.get

    def counted(files: SortedFiles, keys: Sequence[bytes]) -> list[bytes | None]:
        asked.append(len(keys))
        return get(files, keys)

    monkeypatch.setattr(SortedFiles, "get", counted)
    users_max = 20_000
    with rocksdb_backends(1 << 20) as small:
        backend = backend_of(small)
        table = backend.table(COUNTS)
        for begin in range(0, users_max, 1_000):
            add(table, np.arange(begin, begin + 1_000), np.arange(begin, begin + 1_000))
            backend.settle()
        assert sum(asked) < 0.2 * users_max  # because each user was new

        add(table, np.random.default_rng(1).permutation(users_max), 1)
        new = np.arange(users_max, 2 * users_max)
        asked.clear()
        assert (table.find(users(new)) == NO_ROW).all()

        assert sum(asked) < 0.2 * users_max
        assert snapshot(backend) == {user: user + 1 for user in range(users_max)}


@pytest.mark.parametrize("seed", range(5))
def test_a_filter_finds_every_added_key_and_few_others(seed: int) -> None:
    draws = np.random.default_rng(seed)
    found = KeyFilter(1 << 20)
    added = draws.integers(0, 1 << 64, 40_000, np.uint64)
    for part in np.array_split(added, draws.integers(1, 20)):
        found.add(part)
        found.add(part[:100])

    assert found.may_hold(added).all()
    assert found.may_hold(draws.integers(0, 1 << 64, 40_000, np.uint64)).mean() < 0.1


def test_an_overfull_filter_reports_every_key_as_possible() -> None:
    found = KeyFilter(100_000)
    hashes = np.random.default_rng(1).integers(0, 1 << 64, 100_000, np.uint64)

    found.add(hashes)

    assert found.may_hold(hashes + np.uint64(1)).all()
    found.clear()
    assert not found.may_hold(hashes).any()


def test_deleted_rows_that_the_database_stores_are_in_no_snapshot() -> None:
    with rocksdb_backends(is_incremental=True) as backends:
        backend = backend_of(backends)
        table = backend.table(COUNTS)
        add(table, USERS, 1)
        backend.cut_increment(1, 0)  # type: ignore[arg-type]
        table.delete(table.find(users(USERS[:90])))

        assert snapshot(backend) == dict.fromkeys(range(90, 100), 1)


def test_keys_are_scanned_without_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large values would not all fit into memory."""

    def refuse(*_: object) -> Iterator[tuple[bytes, bytes]]:
        raise AssertionError("the values are read")

    monkeypatch.setattr(SortedFiles, "scan", refuse)
    with rocksdb_backends(TINY_BYTES) as tiny:
        backend = backend_of(tiny)
        table = backend.table(COUNTS)
        add(table, USERS, 1)
        backend.settle()

        assert len(table.select_at_most("user", 10)) == 11
        found, position = list[int](), None
        while True:
            rows, position = table.scan(position, 30)
            found += table.keys(rows).column("user").to_pylist()
            if position is None:
                break
        assert set(found) == set(range(100))


def backend_of(backends: RocksDbBackends) -> StateBackend:
    backend = backends(KeyGroupRange(0, 127), 128)
    backend.table(COUNTS)
    return backend


def users(numbers: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch([numbers], schema=COUNTS.key)


def add(table: Table, numbers: np.ndarray, increment: int | np.ndarray) -> None:
    rows = table.rows_for(users(numbers))
    table.write("count", rows, np.asarray(table.read("count", rows)) + increment)


def snapshot(backend: StateBackend) -> dict[int, int]:
    [frozen] = backend.cut()
    found = counts(frozen.batches)
    assert len(found) == frozen.rows
    return found


def counts(batches: Iterator[pa.RecordBatch]) -> dict[int, int]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return {row["user"]: row["count"] for row in rows}
