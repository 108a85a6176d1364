"""A million keys and a value of 64 MiB have the same digest after a restore."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from pipelines.domain.key_groups import KeyGroupRange, range_of
from pipelines.state.backend import Rows, StateBackend, TableDescriptor
from pipelines.state.hashing import key_hashes
from pipelines.state.in_memory.hashmap import HashMapBackend
from tests.contracts.rocksdb_slots import rocksdb_backends
from tests.contracts.stored_states import StoredAs, store_states

pytestmark = pytest.mark.slow

MAX_PARALLELISM = 128
ALL_GROUPS = KeyGroupRange(0, MAX_PARALLELISM - 1)
KEYS = 1_000_000
BATCH_ROWS = 1 << 16
LARGE_BYTES = 64 << 20
MEMORY_BYTES = 32 << 20  # less than the rows take, so that most of them leave memory
ID = pa.schema([("id", pa.int64())])
COUNTS = TableDescriptor("counts", ID, pa.schema([("n", pa.int64())]), {"n": 0}, ("id",))
BLOBS = TableDescriptor("blobs", ID, pa.schema([("blob", pa.binary())]), {"blob": None}, ("id",))
WAYS = [
    ("hashmap", StoredAs.CHECKPOINT, 1),
    ("rocksdb", StoredAs.CHECKPOINT, 1),
    ("hashmap", StoredAs.CANONICAL, 2),
    ("rocksdb", StoredAs.NATIVE, 2),
]
Create = Callable[[KeyGroupRange, int], StateBackend]


@pytest.fixture
def backends() -> Iterator[dict[str, Create]]:
    with rocksdb_backends(MEMORY_BYTES, is_incremental=True) as rocksdb:
        yield {"hashmap": HashMapBackend, "rocksdb": rocksdb}


@pytest.mark.parametrize(("name", "stored_as", "parallelism"), WAYS)
def test_a_million_keys_keep_their_digest_over_a_restore(
    name: str,
    stored_as: StoredAs,
    parallelism: int,
    backends: dict[str, Create],
    tmp_path: Path,
) -> None:
    backend = backends[name](ALL_GROUPS, MAX_PARALLELISM)
    table = backend.table(COUNTS)
    for ids in (*batches_of(np.arange(KEYS)), *batches_of(np.arange(0, KEYS, 10))):
        rows = table.rows_for(pa.record_batch([pa.array(ids * 7_919)], schema=ID))
        table.write("n", rows, table.read("n", rows).astype(np.int64) + ids)
        backend.settle()

    stored = store_states(tmp_path, [backend], stored_as, MAX_PARALLELISM)
    after = [
        backends[name](range_of(index, parallelism, MAX_PARALLELISM), MAX_PARALLELISM)
        for index in range(parallelism)
    ]
    for index, restored in enumerate(after):
        restored.table(COUNTS)
        stored.restore(restored, index, parallelism)

    assert sum(len(restored.table(COUNTS)) for restored in after) == len(table) == KEYS
    ids = np.arange(KEYS)
    counts = ids * np.where(ids % 10 == 0, 2, 1)
    expected = digest(pa.record_batch([pa.array(ids * 7_919), pa.array(counts)], ["id", "n"]))
    batches = [batch for restored in after for batch in restored.cut()[0].batches]
    assert sum(digest(batch) for batch in batches) % 2**64 == expected


@pytest.mark.parametrize(("name", "stored_as"), [way[:2] for way in WAYS])
def test_a_value_of_64_mib_is_restored_byte_for_byte(
    name: str, stored_as: StoredAs, backends: dict[str, Create], tmp_path: Path
) -> None:
    backend = backends[name](ALL_GROUPS, MAX_PARALLELISM)
    value = np.random.default_rng(7).bytes(LARGE_BYTES)
    keys = pa.record_batch([pa.array([1, 2])], schema=ID)
    table = backend.table(BLOBS)
    table.write_arrow("blob", table.rows_for(keys), pa.array([value, b""], pa.binary()))
    backend.settle()

    stored = store_states(tmp_path, [backend], stored_as, MAX_PARALLELISM)
    restored = backends[name](ALL_GROUPS, MAX_PARALLELISM)
    found = restored.table(BLOBS)
    stored.restore(restored)

    [large, empty] = found.read_arrow("blob", found.find(keys))
    assert xxhash.xxh3_128_digest(large.as_buffer()) == xxhash.xxh3_128_digest(value)
    assert empty.as_py() == b""


def batches_of(ids: Rows) -> list[Rows]:
    return np.split(ids, range(BATCH_ROWS, len(ids), BATCH_ROWS))


def digest(rows: pa.RecordBatch) -> int:
    """Returns the digest of a set of rows, in any order."""
    return int(np.sum(key_hashes(rows, ("id", "n")), dtype=np.uint64))
