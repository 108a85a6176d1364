"""The shared directory of a run on a real store: what is deleted, when, and by whose right."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from pipelines.domain.ids import Attempt, CheckpointId
from pipelines.domain.snapshots import FileHandle, StateHandle, StatePart
from pipelines.domain.status import CheckpointKind
from pipelines.protocol.retention import RetainedPoint
from pipelines.protocol.shared_files import shared_name
from pipelines.runtime.master.shared_file_deletion import SharedFilesHost, discard_claimed
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.store import shared_location
from tests.unit.runtime.points import manifest_of, operator_of

ATTEMPT = Attempt(3)


class Directory:
    """A run's checkpoints, and the host of its shared files; deletes are waited for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = FileSystemCheckpointStore([str(root)])
        self.owns_run = True
        self.executor = ThreadPoolExecutor(1)
        self.host = self.started()

    def started(self, *points: int) -> SharedFilesHost:
        """A driver's, that finds these points."""
        found = [RetainedPoint(CheckpointId(n), self.location(n)) for n in points]
        return SharedFilesHost(
            self.store, str(self.root), self.executor, lambda _: self.owns_run, found
        )

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


def test_a_discarded_point_takes_the_files_that_no_other_refers_to(run: Directory) -> None:
    kept, gone = run.written(1, "kept"), run.written(1, "gone")
    run.complete(1, kept, gone)
    run.complete(2, kept)

    run.host.on_discarded(ATTEMPT, RetainedPoint(CheckpointId(1), run.location(1)))()

    assert run.found() == {kept.name}
    assert run.store.verify(run.location(2)) == []


def test_a_driver_that_starts_learns_from_the_manifests_and_sweeps_the_rest(
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


def test_what_is_acknowledged_too_late_is_deleted(run: Directory) -> None:
    late = run.written(1, "late")
    manifest = manifest_of([[operator_of(states=[handle_of([late])])]])

    run.host.on_acknowledged(ATTEMPT, CheckpointId(1), manifest.subtasks[0])

    assert run.found() == set()


def test_after_a_failure_the_next_completion_looks_for_what_is_left(run: Directory) -> None:
    run.host.on_triggered(CheckpointId(1))
    run.host.on_aborted(ATTEMPT, CheckpointId(1))
    run.written(1, "uploaded after the failure")

    run.complete(2)

    assert run.found() == set()


def test_a_claimed_point_leaves_what_its_neighbours_need(run: Directory) -> None:
    both, own = run.written(1, "both"), run.written(1, "own")
    run.publish(1, both, own)
    run.publish(2, both)

    discard_claimed(run.store, run.location(1))

    assert run.found() == {both.name}
    assert run.store.verify(run.location(2)) == []
    discard_claimed(run.store, run.location(2))
    assert run.found() == set()


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
