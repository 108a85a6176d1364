"""Rows of a snapshot are loaded all at once, or one by one if keys are already present."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.snapshots import FileHandle, StateHandle
from pipelines.runtime.subtask.snapshots.snapshotting import IncrementUpload
from pipelines.state.backend import KEY_GROUP_COLUMN, StoredDatabase, TableDescriptor
from pipelines.state.in_memory.hashmap import HashMapBackend
from pipelines.state.on_disk.rocksdb import RocksDbBackend, RocksDbSlot
from pipelines.state.on_disk.sorted_files import SlotMemory, WorkingDirectory
from pipelines.storage.filesystem import FileSystemCheckpointStore

MAX_PARALLELISM = 128
GROUPS = KeyGroupRange(0, MAX_PARALLELISM - 1)
KEYS = {
    "a number": pa.schema([("key", pa.int64())]),
    "a text": pa.schema([("key", pa.string())]),
    "two columns": pa.schema([("key", pa.int64()), ("window", pa.int64())]),
}


@pytest.mark.parametrize("is_incremental", [False, True])
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("seed", range(10))
def test_restoring_keeps_the_last_row_of_each_key_in_any_input_order(
    kind: str, seed: int, *, is_incremental: bool
) -> None:
    rng = random.Random(seed)
    described = descriptor(KEYS[kind])
    source, right = HashMapBackend(GROUPS, MAX_PARALLELISM), dict[object, str]()
    backend = HashMapBackend(GROUPS, MAX_PARALLELISM, is_incremental=is_incremental)
    table = backend.table(described)
    rows_expected = rng.randint(0, 500)

    for number in range(6):
        keys = [rng.choice([None, *range(300)]) for _ in range(rng.randint(1, 90))]
        rows = rows_of(kind, keys, [f"{number}/{at}" for at in range(len(keys))])
        right |= dict(zip(map(str, rows.column("key").to_pylist()), texts(rows), strict=True))
        groups = source.table(described).key_groups_of(rows.select(described.key.names))  # type: ignore[attr-defined]
        stored = rows.append_column(KEY_GROUP_COLUMN, pa.array(groups, pa.uint16()))
        backend.restore("t", [stored], rows_expected)

    found, _ = table.scan(None, 10_000)
    kept = dict(
        zip(
            map(str, table.keys(found).column("key").to_pylist()),
            table.read_arrow("text", found).to_pylist(),
            strict=True,
        )
    )
    assert kept == right


def test_a_database_that_continues_on_linked_files_does_not_alter_its_point(
    tmp_path: Path,
) -> None:
    store = FileSystemCheckpointStore([str(tmp_path)])
    location = str(tmp_path / "chk-1")
    local = WorkingDirectory(tmp_path / "local", "slot")
    slot = RocksDbSlot(local, SlotMemory(1 << 20), is_incremental=True)
    handle = stored(slot(GROUPS, MAX_PARALLELISM), store, location)

    restored = slot(GROUPS, MAX_PARALLELISM)
    restored.table(descriptor(KEYS["a number"]))
    linked: list[str] = []

    def fetch(file: FileHandle, target: Path, *, may_share: bool = False) -> None:
        store.fetch(location, file, target, may_share=may_share)
        linked.extend([target.name] if target.stat().st_nlink > 1 else [])

    assert restored.adopt(StoredDatabase(handle, fetch, is_own=False))
    for round_number in range(40):  # enough for files to be merged and deleted
        fill(restored, range(0, 20_000, 7), f"{round_number}")
        cut(restored, store, str(tmp_path / f"chk-{round_number + 2}"), round_number + 2)
    restored.close()
    local.close()

    assert linked
    assert all(name.endswith(".sst") for name in linked)
    assert [store.problem_of(location, file, reads=True) for file in handle.files] == (
        [None] * len(handle.files)
    )


def stored(backend: RocksDbBackend, store: FileSystemCheckpointStore, location: str) -> StateHandle:
    backend.table(descriptor(KEYS["a number"]))
    fill(backend, range(20_000), "first")
    return cut(backend, store, location, 1)


def fill(backend: RocksDbBackend, keys: range, text: str) -> None:
    table = backend.table(descriptor(KEYS["a number"]))
    batch = pa.record_batch([pa.array(keys)], schema=KEYS["a number"])
    rows = table.rows_for(batch)
    table.write_arrow("text", rows, pa.array([f"{text}/{key}" for key in keys]))
    backend.settle()


def cut(
    backend: RocksDbBackend, store: FileSystemCheckpointStore, location: str, number: int
) -> StateHandle:
    [state] = backend.cut_increment(CheckpointId(number), NO_CHECKPOINT)
    assert state.increment is not None
    upload = IncrementUpload(store, location, CheckpointId(number), Attempt(1), "t-0")
    written = state.increment.write(upload)
    return StateHandle(
        state="t",
        kind="table",
        file=written.file,
        key_groups=(GROUPS.first, GROUPS.last),
        rows=state.rows,
        schema={},
        format=written.format,
        parts=list(written.parts),
    )


def descriptor(key: pa.Schema) -> TableDescriptor:
    value = pa.schema([("text", pa.string())])
    return TableDescriptor(
        name="t", key=key, value=value, defaults={"text": ""}, key_group_by=("key",)
    )


def rows_of(kind: str, keys: list[int | None], written: list[str]) -> pa.RecordBatch:
    schema = pa.schema([*KEYS[kind], ("text", pa.string())])
    is_text = kind == "a text"
    columns = [pa.array([None if k is None else str(k) if is_text else k for k in keys])]
    if kind == "two columns":
        columns.append(pa.array(np.zeros(len(keys), np.int64)))
    columns.append(pa.array(written))
    arrays = [each.cast(field.type) for each, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def texts(rows: pa.RecordBatch) -> list[str]:
    written: list[str] = rows.column("text").to_pylist()
    return written
