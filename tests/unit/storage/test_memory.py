"""Checkpoints in the coordinator's memory: only small ones, and each refusal says what to do."""

import json

import msgspec
import pyarrow as pa
import pytest

from pipelines.domain.errors import Retryable
from pipelines.domain.snapshots import FileHandle, Manifest
from pipelines.storage.stores import MAX_POINT_BYTES, MemoryCheckpointStore, check_travels
from tests.unit.storage.points import SCHEMA, manifest_of, rows

LOCATION = "memory://run-1/chk-1"


def test_a_point_can_be_read_from_its_manifest_alone() -> None:
    file = written(MemoryCheckpointStore(1_000))
    wire = msgspec.json.encode(manifest_of([file]))

    arrived = msgspec.json.decode(wire, type=Manifest).subtasks[0].operators[0].states[0].file

    elsewhere = MemoryCheckpointStore(1_000)
    assert list(elsewhere.read_batches(LOCATION, arrived)) == [rows()]


def test_a_state_above_the_bound_is_refused_by_its_name_and_size() -> None:
    whole = written(MemoryCheckpointStore(1 << 20)).length

    assert written(MemoryCheckpointStore(whole)).length == whole
    with pytest.raises(Retryable, match=rf"s-0\.arrow is larger than {whole - 1} bytes") as refusal:
        written(MemoryCheckpointStore(whole - 1))
    assert "storage to filesystem" in str(refusal.value)


def test_a_point_that_is_too_large_for_a_message_is_not_published() -> None:
    store = MemoryCheckpointStore(1 << 20)
    large = handle(MAX_POINT_BYTES)  # larger still when encoded as text

    with pytest.raises(Retryable, match=f"{LOCATION} is larger than {MAX_POINT_BYTES} bytes"):
        store.publish(LOCATION, manifest_of([large]))

    assert store.published("memory://run-1") == []


def test_the_states_of_one_subtask_are_bounded_together() -> None:
    half = handle(MAX_POINT_BYTES // 2)
    check_travels([half, half, FileHandle(name="on-disk", length=1 << 40, digest="")])

    with pytest.raises(Retryable, match="The state of one subtask is larger"):
        check_travels([half, half, handle(1)])


def test_the_handle_of_a_file_on_disk_carries_no_contents() -> None:
    on_disk = FileHandle(name="s-0.arrow", length=1, digest="d")

    assert json.loads(msgspec.json.encode(on_disk)) == {
        "name": "s-0.arrow",
        "length": 1,
        "digest": "d",
    }


def written(store: MemoryCheckpointStore, batch: pa.RecordBatch | None = None) -> FileHandle:
    return store.write_batches(LOCATION, "s-0", SCHEMA, [batch or rows()], open_format=False)


def handle(length: int) -> FileHandle:
    return FileHandle(name="s-0.arrow", length=length, digest="d", content=bytes(length))
