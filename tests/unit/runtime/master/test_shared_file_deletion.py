"""The shared directory of a run on a real store: what is deleted, when, and by which driver."""

import builtins
import contextlib
import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipelines.domain.errors import Retryable
from pipelines.domain.ids import Attempt, CheckpointId
from pipelines.domain.snapshots import FileHandle, StateHandle, StatePart
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.retention import RetainedPoint, shared_name
from pipelines.runtime.control import Acknowledged, Inject
from pipelines.runtime.master.checkpoints.shared_file_deletion import (
    SharedFilesHost,
    discard_claimed,
)
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.manifests import MANIFEST
from pipelines.storage.store import shared_location
from tests.unit.runtime.hosted_checkpoints import Master
from tests.unit.runtime.points import manifest_of, operator_of
from tests.unit.runtime.recording_attempt import phases_of

ATTEMPT = Attempt(3)


class Directory:
    """A run's checkpoints and the host of its shared files. It waits for each deletion."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = FileSystemCheckpointStore([str(root)])
        self.owns_run = True
        self.executor = ThreadPoolExecutor(1)
        self.host = self.started()

    def started(self, *points: int) -> SharedFilesHost:
        """Returns the host of a driver that starts and finds these points."""
        found = [RetainedPoint(CheckpointId(n), self.location(n)) for n in points]
        return SharedFilesHost(
            self.store, str(self.root), self.executor, lambda _: self.owns_run, found
        )

    def manifest(self, number: int) -> Path:
        return Path(self.location(number)) / MANIFEST

    def location(self, number: int) -> str:
        return str(self.root / f"chk-{number}")

    def written(self, number: int, rest: str) -> FileHandle:
        name = shared_name(CheckpointId(number), ATTEMPT, rest)
        place = shared_location(self.location(number))
        file = self.store.write_file(place, name, [b"rows"])
        return msgspec.structs.replace(file, is_shared=True)

    def publish(self, number: int, *files: FileHandle) -> None:
        manifest = manifest_of([[operator_of(states=[handle_of(files)])]])
        manifest = msgspec.structs.replace(
            manifest, checkpoint_id=CheckpointId(number), kind=CheckpointKind.CHECKPOINT
        )
        self.store.publish(self.location(number), manifest)

    def complete(self, number: int, *files: FileHandle) -> None:
        self.host.on_triggered(CheckpointId(number))
        self.publish(number, *files)
        self.host.on_completed(ATTEMPT, self.store.manifest(self.location(number)))

    def found(self) -> set[str]:
        self.executor.submit(lambda: None).result()
        return set(self.store.names(shared_location(self.location(1))))


@pytest.fixture
def run(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "checkpoints")


def test_discarding_a_point_deletes_the_files_that_only_it_refers_to(run: Directory) -> None:
    kept, gone = run.written(1, "kept"), run.written(1, "gone")
    run.complete(1, kept, gone)
    run.complete(2, kept)

    run.host.on_discarded(ATTEMPT, RetainedPoint(CheckpointId(1), run.location(1)))()

    assert run.found() == {kept.name}
    assert run.store.verify(run.location(2)) == []


def test_a_starting_driver_sweeps_the_files_that_no_manifest_names(
    run: Directory,
) -> None:
    kept = run.written(1, "kept")
    run.publish(1, kept)
    run.written(2, "never acknowledged")

    run.host = run.started(1)
    run.host.sweep(ATTEMPT)

    assert run.found() == {kept.name}


def test_a_driver_that_lost_the_run_deletes_nothing(run: Directory) -> None:
    files = {run.written(2, "a successor's").name}
    run.owns_run = False

    run.host.sweep(ATTEMPT)

    assert run.found() == files


def test_shared_files_of_a_late_acknowledgement_are_deleted(run: Directory) -> None:
    late = run.written(1, "late")
    manifest = manifest_of([[operator_of(states=[handle_of([late])])]])

    run.host.on_acknowledged_late(ATTEMPT, manifest.subtasks[0])

    assert run.found() == set()


@pytest.mark.parametrize("is_late", [False, True])
def test_the_host_deletes_the_shared_files_of_a_failed_checkpoint(
    tmp_path: Path, is_late: bool
) -> None:
    master = Master(tmp_path)
    master.trigger()
    place = shared_location(master.attempt.of(Inject)[0].location)
    name = shared_name(CheckpointId(1), Attempt(1), "rows")
    file = msgspec.structs.replace(master.store.write_file(place, name, [b"rows"]), is_shared=True)
    acknowledged = Acknowledged(
        checkpoint_id=CheckpointId(1),
        snapshot=manifest_of([[operator_of(states=[handle_of([file])])]]).subtasks[0],
        phases=phases_of("left", 0),
        source_records=0,
        watermark_ms=None,
    )

    if is_late:
        master.decline(1)
        master.host.on_acknowledged(acknowledged)
    else:
        master.host.on_acknowledged(acknowledged)
        master.decline(1)

    assert master.store.names(place) == []


def test_the_completion_after_a_failed_checkpoint_deletes_orphaned_files(run: Directory) -> None:
    run.host.on_triggered(CheckpointId(1))
    run.host.on_aborted(ATTEMPT, CheckpointId(1), ())
    run.written(1, "uploaded after the failure")

    run.complete(2)

    assert run.found() == set()


def test_discarding_a_claimed_point_keeps_files_that_other_points_need(run: Directory) -> None:
    both, own = run.written(1, "both"), run.written(1, "own")
    run.publish(1, both, own)
    run.publish(2, both)

    discard_claimed(run.store, run.location(1))

    assert run.found() == {both.name}
    assert run.store.verify(run.location(2)) == []
    discard_claimed(run.store, run.location(2))
    assert run.found() == set()


@pytest.mark.parametrize("spoil", ["silent", "altered", "missing"])
def test_a_point_with_an_unreadable_manifest_keeps_its_files_until_discarded(
    run: Directory, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    """A single error, such as ESTALE, while the driver starts is enough."""
    kept, other = run.written(1, "kept"), run.written(2, "other")
    run.publish(1, kept)
    run.publish(2, kept, other)
    with spoiled(run.manifest(2), spoil, monkeypatch):
        run.host = run.started(1, 2)
    run.written(9, "never acknowledged")

    run.host.sweep(ATTEMPT)
    run.host.on_discarded(ATTEMPT, RetainedPoint(CheckpointId(1), run.location(1)))()

    assert run.found() == {kept.name, other.name}
    assert run.store.verify(run.location(2)) == []
    run.host.on_discarded(ATTEMPT, RetainedPoint(CheckpointId(2), run.location(2)))()
    assert run.found() == set()


@pytest.mark.parametrize(
    ("which", "spoil"),
    [(1, "silent"), (1, "altered"), (1, "missing"), (2, "silent"), (2, "altered")],
)
def test_a_claimed_point_leaves_its_files_while_any_point_is_unreadable(
    run: Directory, monkeypatch: pytest.MonkeyPatch, spoil: str, which: int
) -> None:
    both, own = run.written(1, "both"), run.written(1, "own")
    run.publish(1, both, own)
    run.publish(2, both)

    with (
        spoiled(run.manifest(which), spoil, monkeypatch),
        contextlib.suppress(Retryable),
    ):
        discard_claimed(run.store, run.location(1))

    assert run.found() == {both.name, own.name}
    assert Path(run.location(1)).exists() == (spoil == "silent")


@contextlib.contextmanager
def spoiled(manifest: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Spoils the manifest, and restores it afterwards unless it was deleted meanwhile."""
    content, read = manifest.read_bytes(), builtins.open

    def silent(path: object, *args: Any, **options: Any) -> Any:
        if str(path) == str(manifest):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(path, *args, **options)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        if how == "silent":
            patch.setattr(builtins, "open", silent)
        elif how == "altered":
            manifest.write_bytes(content[:-9])
        else:
            manifest.unlink()
        yield
    if manifest.parent.exists():
        manifest.write_bytes(content)


def handle_of(files: list[FileHandle] | tuple[FileHandle, ...]) -> StateHandle:
    first, *others = files or [FileHandle(name="none", length=0, digest="")]
    return StateHandle(
        state="totals",
        kind="table",
        file=first,
        key_groups=(0, 127),
        rows=1,
        schema={},
        parts=[StatePart(name="delta", file=file) for file in others],
    )
