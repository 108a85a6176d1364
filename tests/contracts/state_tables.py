"""Shared by the suites over state backends: the backends, the states they declare, and rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import pyarrow as pa
import pytest

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.backend import BatchListDescriptor, StateBackend, TableDescriptor
from pipelines.state.hashing import key_groups, key_hashes
from pipelines.state.in_memory import columns, key_columns, key_rows
from pipelines.state.in_memory.hashmap import HashMapBackend
from tests.contracts.rocksdb_slots import AMPLE_BYTES, TINY_BYTES, rocksdb_backends

MAX_PARALLELISM = 128
ALL_GROUPS = KeyGroupRange(0, MAX_PARALLELISM - 1)
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
EVENTS = BatchListDescriptor(
    "events", pa.schema([("name", pa.string()), ("amount", pa.int64())]), ("name",)
)
BACKENDS = ["hashmap", "hashmap in tiny segments", "rocksdb", "rocksdb in tiny memory"]

Key = tuple[object, ...]
Build = Callable[[KeyGroupRange], StateBackend]


@contextmanager
def backends_named(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Tiny segments and indexes need a dozen keys for what otherwise takes 100,000."""
    if name.startswith("rocksdb"):
        with rocksdb_backends(TINY_BYTES if "tiny" in name else AMPLE_BYTES) as backends:
            yield lambda groups: backends(groups, MAX_PARALLELISM)
        return
    if "tiny" in name:
        monkeypatch.setattr(columns, "SEGMENT_BITS", 2)
        monkeypatch.setattr(columns, "CHUNK_BYTES", 100)
        monkeypatch.setattr(key_columns, "_GARBAGE_MIN", 5)
        monkeypatch.setattr(key_columns, "_GARBAGE_MIN_BYTES", 200)
        monkeypatch.setattr(columns, "SEGMENT_ROWS", 4)
        monkeypatch.setattr(columns, "INITIAL_ROWS", 4)
        monkeypatch.setattr(key_rows, "INITIAL_CAPACITY", 4)
    yield lambda groups: HashMapBackend(groups, MAX_PARALLELISM)


def table_of(key: pa.Schema) -> TableDescriptor:
    return TableDescriptor("table", key, VALUES, DEFAULTS, (key.names[0],))


def batch_of(schema: pa.Schema, rows: list[Key]) -> pa.RecordBatch:
    columns = [[row[index] for row in rows] for index in range(len(schema))]
    arrays = [pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def keys_of(batch: pa.RecordBatch) -> list[Key]:
    plain = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
    return list(zip(*(column.to_pylist() for column in plain), strict=True))


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


def tuples(batch: pa.RecordBatch) -> list[Key]:
    """Returns the rows as tuples of Python values."""
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
