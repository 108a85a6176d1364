"""Checkpoints on a file system, with a kill or a disk error at every single step.

The shim numbers every call that touches the disk. A kill at step k also stops all later calls,
including the cleanup. A disk error strikes once, and the program continues.
"""

import errno
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import (
    FORMAT_VERSION,
    Manifest,
    OperatorSnapshot,
    StateHandle,
    SubtaskSnapshot,
)
from pipelines.domain.status import CheckpointKind
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.store import Publication
from tests.unit.storage.disks import STEPS_MAX, Disk

SCHEMA = pa.schema([("key", pa.int64())])
HARMLESS = (None, "mkdir", "unlink")  # the directory exists, or a temporary file is left
DISK_ERRORS = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> "Disk":
    return Disk(monkeypatch)


@pytest.fixture(autouse=True)
def skip_the_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill loses nothing that the system has; a test below checks that fsync is called."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.mark.slow
@pytest.mark.parametrize("open_format", [False, True])
def test_a_kill_at_any_step_leaves_a_point_whole_or_absent_and_retryable(
    root: Path, disk: "Disk", open_format: bool
) -> None:
    for step in range(1, STEPS_MAX):
        location = str(root / f"chk-{step}")

        was_killed = disk.kill_at(step, partial(take_point, root, location, open_format, 1))

        assert_whole_or_absent(root, location)
        take_point(root, location, open_format, 2)
        assert store_at(root).verify(location) == []
        if not was_killed:
            assert step > 20  # every step of the point was once the last
            return
    pytest.fail("a point takes a bounded number of steps")


@pytest.mark.parametrize("code", DISK_ERRORS)
@pytest.mark.parametrize("open_format", [False, True])
def test_an_error_of_the_disk_at_any_step_is_retryable_and_leaves_no_litter(
    root: Path, disk: "Disk", open_format: bool, code: int
) -> None:
    for step in range(1, STEPS_MAX):
        location = str(root / f"chk-{step}")

        act = partial(take_point, root, location, open_format, 1)
        error = disk.fail_at(step, code, act)

        assert isinstance(error, Retryable) or disk.failed_call in HARMLESS
        assert error is None or (os.strerror(code) in str(error) and location in str(error))
        assert_whole_or_absent(root, location)
        assert disk.failed_call == "unlink" or not list(Path(location).glob(".*"))
        take_point(root, location, open_format, 2)
        assert store_at(root).verify(location) == []
        if disk.failed_call is None:
            return
    pytest.fail("a point takes a bounded number of steps")


def test_a_kill_at_any_step_of_discarding_leaves_the_point_whole_or_absent(
    root: Path, disk: "Disk"
) -> None:
    for step in range(1, STEPS_MAX):
        location = str(root / f"chk-{step}")
        take_point(root, location, False, 1)

        was_killed = disk.kill_at(step, partial(store_at(root).discard, location))

        assert_whole_or_absent(root, location)
        store_at(root).discard(location)
        assert not Path(location).exists()
        if not was_killed:
            return
    pytest.fail("discarding takes a bounded number of steps")


def test_deleting_the_manifest_is_durable_before_any_file_is_deleted(
    root: Path, disk: "Disk"
) -> None:
    location = str(root / "chk-1")
    take_point(root, location, False, 1)

    disk.kill_at(STEPS_MAX, partial(store_at(root).discard, location))

    assert disk.calls[:3] == ["unlink", "open directory", "fsync"]
    assert disk.calls[-1] == "rmdir"


def test_a_manifest_that_cannot_be_deleted_keeps_its_point_whole(root: Path, disk: "Disk") -> None:
    location = str(root / "chk-1")
    take_point(root, location, False, 1)

    error = disk.fail_at(1, errno.EIO, partial(store_at(root).discard, location))

    assert isinstance(error, Retryable)
    assert str(error).startswith(f"manifest.json cannot be deleted in {location}: ")
    assert store_at(root).verify(location) == []


def test_the_files_of_a_manifest_are_durable_before_the_manifest_appears(
    root: Path, disk: "Disk"
) -> None:
    disk.kill_at(STEPS_MAX, partial(take_point, root, str(root / "chk-1"), False, 1))

    calls = [call for call in disk.calls if call not in ("mkdir", "write", "unlink")]
    of_new_directories = ["open directory", "fsync"] * 2  # the root and the point's
    of_a_file = ["open", "fsync", "link", "open directory", "fsync"]
    of_the_manifest = ["open", "fsync", "link", *["open directory", "fsync"] * 2]
    assert calls == [*of_new_directories, *of_a_file * 2, *of_the_manifest]


@pytest.mark.parametrize("open_format", [False, True])
def test_a_partly_written_file_is_not_acknowledged(
    root: Path, monkeypatch: pytest.MonkeyPatch, open_format: bool
) -> None:
    def lose_a_byte(descriptor: int) -> None:
        """Acts like a network share that acknowledges more than it has kept."""
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.truncate(descriptor, os.fstat(descriptor).st_size - 1)

    monkeypatch.setattr(os, "fsync", lose_a_byte)

    with pytest.raises(Retryable, match=r"chk-1/count-0-1.* bytes instead of"):
        take_point(root, str(root / "chk-1"), open_format, 1)

    assert list((root / "chk-1").iterdir()) == []


def test_an_error_in_the_rows_themselves_is_passed_on_and_leaves_no_litter(root: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield rows()
        raise ZeroDivisionError("a bug in the state")

    with pytest.raises(ZeroDivisionError):
        store_at(root).write_batches(
            str(root / "chk-1"), "count-0", SCHEMA, broken(), open_format=False
        )

    assert list((root / "chk-1").iterdir()) == []


def test_litter_of_a_killed_writer_is_not_mistaken_for_a_point(root: Path) -> None:
    (root / "chk-1").mkdir(parents=True)
    (root / "chk-1" / ".manifest.json.0123").write_bytes(b"{}")

    assert store_at(root).published(str(root)) == []


@pytest.mark.parametrize("spelled", ["link", "jobs/../jobs"])
def test_points_are_listed_with_the_spelling_of_the_requested_root(
    root: Path, spelled: str
) -> None:
    take_point(root, str(root / "chk-1"), False, 1)
    (root.parent / "link").symlink_to(root)
    asked = f"{root.parent}/{spelled}"

    assert store_at(root).published(asked) == [f"{asked}/chk-1"]


@pytest.mark.parametrize("asked", ["names", "published"])
def test_a_disk_that_does_not_answer_is_not_mistaken_for_an_empty_one(
    root: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    take_point(root, str(root / "chk-1"), False, 1)
    store = store_at(root)
    for call in ("listdir", "scandir"):
        monkeypatch.setattr(os, call, unanswered)

    with pytest.raises(Retryable, match=f"{root} cannot be listed: .*Stale file handle"):
        getattr(store, asked)(str(root))


def unanswered(path: object) -> None:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


@pytest.mark.parametrize("suffix", [".json", ".arrow"])
def test_the_store_does_not_follow_a_link_among_the_files_of_a_point(
    root: Path, suffix: str
) -> None:
    """A person who can write to the storage must not be able to read other files through it."""
    point = root / "chk-1"
    take_point(root, str(point), False, 1)
    file = min(point.glob(f"*{suffix}"))
    file.rename(root.parent / "elsewhere")
    file.symlink_to(root.parent / "elsewhere")

    [damage] = store_at(root).verify(str(point))

    assert damage.problem.startswith(f"{file} is a link")


def take_point(root: Path, location: str, open_format: bool, attempt: int) -> Publication:
    """Writes what a checkpoint writes: two files, then the manifest."""
    store = store_at(root)
    files = [
        store.write_batches(
            location, f"count-{n}-{attempt}", SCHEMA, [rows()], open_format=open_format
        )
        for n in range(2)
    ]
    states = [
        StateHandle(state=f"s{n}", kind="table", file=file, key_groups=(0, 127), rows=3, schema={})
        for n, file in enumerate(files)
    ]
    operator = OperatorSnapshot(uid=Uid("count"), states=states)
    subtask = SubtaskSnapshot(vertex=Uid("count"), subtask=0, operators=[operator])
    return store.publish(
        location,
        Manifest(
            format_version=FORMAT_VERSION,
            pipeline="flights",
            run_id=RunId("run-1"),
            attempt=Attempt(attempt),
            checkpoint_id=CheckpointId(1),
            kind=CheckpointKind.CHECKPOINT,
            trigger_ms=1,
            completed_ms=2,
            parallelism=1,
            max_parallelism=128,
            ancestors=[],
            operator_ids={},
            subtasks=[subtask],
        ),
    )


def assert_whole_or_absent(root: Path, location: str) -> None:
    store = store_at(root)
    if (Path(location) / "manifest.json").exists():
        assert store.verify(location) == []
        assert location in store.published(str(root))
    else:
        with pytest.raises(CorruptSnapshot, match=r"manifest\.json is missing"):
            store.manifest(location)
        assert location not in store.published(str(root))


def store_at(root: Path) -> FileSystemCheckpointStore:
    return FileSystemCheckpointStore([str(root)])


def rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int64())], schema=SCHEMA)
