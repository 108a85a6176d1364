"""Keys that look alike, are empty, huge or at an edge: each is found again, or refused.

The tests run on both backends and rescale from two subtasks to three, through each form of a point.
A canonical savepoint also goes into the other backend. A refusal names the column of the key.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import KeyGroupRange, range_of
from pipelines.points.browsing import rows_of
from pipelines.state.backend import BatchListDescriptor, StateBackend, TableDescriptor
from pipelines.state.hashing import key_groups, key_hashes
from pipelines.state.in_memory.hashmap import HashMapBackend
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends
from tests.contracts.stored_states import StoredAs, StoredStates, store_states

MAX_PARALLELISM = 16
LONG = "x" * (1 << 20)
ZURICH = pa.timestamp("ms", "Europe/Zurich")
FOLD = datetime(2023, 10, 29, 0, 30, tzinfo=UTC)  # 02:30 in Zürich, an hour before 02:30 again
KEYS: dict[str, tuple[pa.DataType, list[object]]] = {
    "tiny integers": (pa.int8(), [-128, -1, 0, 1, 127]),
    "large integers": (pa.int64(), [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]),
    "unsigned integers": (pa.uint64(), [0, 1, 2**63 - 1, 2**63, 2**64 - 1]),
    "truth": (pa.bool_(), [False, True]),
    "days": (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 1, 1)]),
    "times of a zone": (ZURICH, [FOLD, FOLD + timedelta(hours=1), FOLD + timedelta(hours=2)]),
    "nanoseconds": (pa.timestamp("ns", "UTC"), [-1, 0, 1, 2**62]),
    "seconds without a zone": (pa.timestamp("s"), [-1, 0, 1]),
    "texts that look like other things": (
        pa.string(),
        ["", " ", "1", "1.0", "01", "true", "True", "nan", "NaN", "null", "None", "-0.0", "0.0"],
    ),
    "texts of Unicode": (
        pa.string(),
        ["é", "e\u0301", "ﬁ", "fi", "İ", "i̇", "a\0", "a", "\ufeffa", "😀", "\U0010ffff", "\ud7ff"],
    ),
    "long texts": (pa.string(), [LONG, LONG + "x", "y" + LONG, LONG[:-1] + "y"]),
    "large texts": (pa.large_string(), ["", "a", LONG]),
    "bytes": (pa.binary(), [b"", b"\0", b"\0\0", b"\xed\xa0\x80", b"\xff", "é".encode()]),
    "large bytes": (pa.large_binary(), [b"", b"\0"]),
}
NOT_KEYS = [
    pa.float64(),
    pa.float32(),
    pa.decimal128(5, 2),
    pa.list_(pa.string()),
    pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
    pa.duration("ms"),
    pa.time64("us"),
    pa.null(),
    pa.binary(2),
]
WAYS = [
    (StoredAs.CHECKPOINT, "hashmap", "hashmap"),
    (StoredAs.CHECKPOINT, "rocksdb", "rocksdb"),
    (StoredAs.NATIVE, "rocksdb", "hashmap"),
    (StoredAs.CANONICAL, "hashmap", "rocksdb"),
    (StoredAs.CANONICAL, "rocksdb", "hashmap"),
]
Positions = npt.NDArray[np.int64]
Create = Callable[[str, KeyGroupRange], StateBackend]


@pytest.fixture
def create(tmp_path: Path) -> Iterator[Create]:
    with rocksdb_backends(TINY_BYTES, is_incremental=True) as rocksdb:

        def backend(name: str, groups: KeyGroupRange) -> StateBackend:
            if name == "rocksdb":
                return rocksdb(groups, MAX_PARALLELISM)
            return HashMapBackend(groups, MAX_PARALLELISM, is_incremental=True)

        yield backend


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("kind", KEYS)
def test_similar_keys_stay_distinct_and_are_found_at_another_parallelism(
    kind: str, way: tuple[StoredAs, str, str], create: Create, tmp_path: Path
) -> None:
    stored_as, old, new = way
    keys, table = keys_of(kind), table_of(KEYS[kind][0])
    before = [create(old, range_of(index, 2, MAX_PARALLELISM)) for index in range(2)]
    for index, backend in enumerate(before):
        mine = owned(keys, index, 2)
        rows = backend.table(table).rows_for(keys.take(pa.array(mine)))
        backend.table(table).write("number", rows, mine)
        backend.settle()

    stored = store_states(tmp_path, before, stored_as, MAX_PARALLELISM)

    for index in range(3):
        after = create(new, range_of(index, 3, MAX_PARALLELISM))
        restored = after.table(table)
        stored.restore(after, index, 3)
        mine = owned(keys, index, 3)
        rows = restored.find(keys.take(pa.array(mine)))
        assert len(restored) == len(mine)
        assert restored.read("number", rows).tolist() == mine.tolist()
        assert restored.keys(rows).equals(keys.take(pa.array(mine)))
    assert read_back(stored).equals(keys.column("key"))


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("type_", NOT_KEYS, ids=str)
def test_a_type_that_cannot_be_a_key_is_refused_by_column_name(
    type_: pa.DataType, backend: str, create: Create
) -> None:
    """NaN equals nothing, and minus zero equals zero, so a double has no key group."""
    schema = pa.schema([("amount", type_)])
    state = create(backend, KeyGroupRange(0, MAX_PARALLELISM - 1))

    with pytest.raises(Rejected, match=r"'totals'.*'amount' has type"):
        state.table(TableDescriptor("totals", schema, pa.schema([]), {}, ("amount",)))
    with pytest.raises(Rejected, match=r"'totals'.*'amount' has type"):
        state.batch_list(BatchListDescriptor("totals", schema, ("amount",)))
    with pytest.raises(Rejected, match=r"'amount' of type .* cannot be a key"):
        key_hashes(pa.record_batch([pa.nulls(1, type_)], schema=schema), ("amount",))


def test_a_number_and_its_text_are_different_keys() -> None:
    """Rows meet if their keys have one type; a one as a double or as a text is another key."""
    ones = [pa.array([1]), pa.array([True]), pa.array(["1"]), pa.array(["1.0"]), pa.array(["true"])]

    hashes = [int(key_hashes(pa.record_batch([one], ["key"]), ("key",))[0]) for one in ones]

    assert hashes[0] == hashes[1]  # never in one state, since a state declares its types
    assert len(set(hashes)) == 4


def keys_of(kind: str) -> pa.RecordBatch:
    """Returns the keys of that kind, and null."""
    type_, values = KEYS[kind]
    return pa.record_batch([pa.array([*values, None], type_)], names=["key"])


def table_of(type_: pa.DataType) -> TableDescriptor:
    value = pa.schema([("number", pa.int64())])
    return TableDescriptor("keys", pa.schema([("key", type_)]), value, {"number": -1}, ("key",))


def owned(keys: pa.RecordBatch, subtask: int, parallelism: int) -> Positions:
    """Returns the positions of the keys that a subtask owns."""
    own = range_of(subtask, parallelism, MAX_PARALLELISM)
    groups = key_groups(key_hashes(keys, ("key",)), MAX_PARALLELISM)
    return np.flatnonzero((groups >= own.first) & (groups <= own.last))


def read_back(stored: StoredStates) -> pa.Array:
    """Returns the keys as a reader of a point finds them, ordered by their numbers."""
    handles = [h for s in stored.subtasks for o in s.operators for h in o.states]
    batches = [b for h in handles for b in rows_of(stored.store, stored.location, h)]
    return pa.Table.from_batches(batches).sort_by("number")["key"].combine_chunks()
