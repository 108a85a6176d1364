"""A driver that dies at any step of a checkpoint, with or without the power, and its successor.

One checkpoint writes a file of its own and one that later ones share, publishes its manifest, and
retention deletes the one before. The process ends at step k, for each k; then another driver
finds the newest checkpoint or the one before, whole, and once it has completed one nothing else is
left. Source: the crash schedules of ALICE (Pillai et al., OSDI 2014), by what was synced.
"""

import shutil
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.places import SnapshotPlaces
from pipelines.domain.run import RunDirectory
from pipelines.domain.setting_parsing import parse_settings
from pipelines.domain.snapshots import (
    FileHandle,
    Manifest,
    OperatorSnapshot,
    StateFormat,
    StateHandle,
    StatePart,
)
from pipelines.protocol.recovery import Choice, choose_point
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.protocol.shared_files import shared_name
from pipelines.runtime.faults import Faults
from pipelines.runtime.master.point_files import PointFiles
from pipelines.runtime.master.restore_points import own_points
from pipelines.runtime.master.shared_file_deletion import SharedFilesHost
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.store import Publication, shared_location
from tests.unit.runtime.fakes import SCHEMA, batch_of
from tests.unit.runtime.points import PIPELINE, manifest_of
from tests.unit.storage.disks import STEPS_MAX, DurableDisk

pytestmark = pytest.mark.slow

RUN, NEIGHBOUR = RunId("run-1"), RunId("run-2")
OLD, NEW = Attempt(1), Attempt(2)


@pytest.mark.parametrize("power", ["stays", "fails"])
def test_a_death_at_any_step_leaves_the_newest_point_or_the_one_before_and_then_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: str
) -> None:
    reached = set()
    for step in range(1, STEPS_MAX):
        root = tmp_path / f"{power}-{step}"
        disk, places = disk_with_a_run(monkeypatch, root)
        first = Driver(root, places, OLD)
        for checkpoint_id in (1, 2):
            first.take(CheckpointId(checkpoint_id))

        was_killed = disk.kill_at(step, lambda: first.take(CheckpointId(3)))  # noqa: B023
        if power == "fails":
            disk.lose_power()

        second = Driver(root, places, NEW)
        found = choose_point(second.points.newest_first(), second.problem_of)
        assert isinstance(found, Choice)
        assert found.point is not None
        assert found.point.checkpoint_id in (2, 3)
        assert found.refused == ()
        reached.add(found.point.checkpoint_id)
        second.sweep(CheckpointId(4))
        second.take(CheckpointId(4))
        assert second.stored() == second.expected()
        shutil.rmtree(root)
        if not was_killed:
            assert reached == {2, 3}
            return
    pytest.fail("a checkpoint takes a bounded number of steps")


def test_a_deletion_that_a_death_has_cut_short_is_finished_by_the_next_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, STEPS_MAX):
        root = tmp_path / str(step)
        disk, places = disk_with_a_run(monkeypatch, root)
        first = Driver(root, places, OLD, retained=3)
        for checkpoint_id in (1, 2, 3):
            first.take(CheckpointId(checkpoint_id))

        was_killed = disk.kill_at(step, lambda: first.keep(1))  # noqa: B023
        second = Driver(root, places, NEW)
        whole = second.points.newest_first()
        assert all(second.problem_of(point) is None for point in whole)
        assert CheckpointId(3) in [point.checkpoint_id for point in whole]
        second.sweep(CheckpointId(4))
        second.take(CheckpointId(4))
        assert second.stored() == second.expected()
        shutil.rmtree(root)
        if not was_killed:
            return
    pytest.fail("a deletion takes a bounded number of steps")


def test_of_two_runs_in_one_directory_each_sweeps_only_what_is_its_own(tmp_path: Path) -> None:
    settings = parse_settings({"execution.checkpointing.dir": str(tmp_path)})
    mine, others = (
        SnapshotPlaces.of(RunDirectory.of(tmp_path / "jobs", PIPELINE, run), settings)
        for run in (RUN, NEIGHBOUR)
    )
    drivers = [Driver(tmp_path, places, OLD) for places in (mine, others)]
    for driver in drivers:
        driver.take(CheckpointId(1))
        driver.leave_unfinished(CheckpointId(2))
    (tmp_path / RUN / "notes.txt").write_text("somebody else's")
    before = drivers[1].stored()

    successor = Driver(tmp_path, mine, NEW)
    successor.sweep(CheckpointId(3))
    successor.take(CheckpointId(3))

    assert drivers[1].stored() == before
    assert successor.stored() == successor.expected() | {"notes.txt"}


class Driver:
    """What a driver does to the storage of its run, on one thread."""

    def __init__(
        self, root: Path, places: SnapshotPlaces, attempt: Attempt, *, retained: int = 1
    ) -> None:
        self._places = places
        self._attempt = attempt
        self._store = FileSystemCheckpointStore([str(root)])
        found = tuple(own_points(places, self._store))
        self.points = RetainedPoints(retained, found)
        around = SimpleNamespace(
            places=places,
            store=self._store,
            executor=Inline(),
            owns_run=lambda _: True,
            post=lambda _: None,
            faults=Faults(),
        )
        self._files = PointFiles(around)  # type: ignore[arg-type]
        self._shared = SharedFilesHost(
            self._store, places.checkpoints, around.executor, around.owns_run, found
        )

    def problem_of(self, point: RetainedPoint) -> str | None:
        damages = self._store.verify(point.location)
        return damages[0].problem if damages else None

    def sweep(self, first_new_id: CheckpointId) -> None:
        self._files.sweep(self._attempt, first_new_id)
        self._shared.sweep(self._attempt)

    def take(self, checkpoint_id: CheckpointId) -> None:
        self._shared.on_triggered(checkpoint_id)
        manifest = self._written(checkpoint_id)
        for snapshot in manifest.subtasks:
            self._shared.on_acknowledged(self._attempt, checkpoint_id, snapshot)
        location = self._places.checkpoint(checkpoint_id)
        assert self._store.publish(location, manifest) is Publication.PUBLISHED
        for point in self.points.on_completed(RetainedPoint(checkpoint_id, location)):
            self._discard(point)
        self._shared.on_completed(self._attempt, manifest)

    def leave_unfinished(self, checkpoint_id: CheckpointId) -> None:
        self._shared.on_triggered(checkpoint_id)
        self._written(checkpoint_id)

    def keep(self, count: int) -> None:
        for point in reversed(self.points.newest_first()[count:]):
            self._discard(point)

    def stored(self) -> set[str]:
        root = Path(self._places.checkpoints)
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    def expected(self) -> set[str]:
        """What the retained points hold."""
        names = set()
        for point in self.points.newest_first():
            own = point.location.rpartition("/")[2]
            manifest = self._store.manifest(point.location)
            files = {f"{'shared' if f.is_shared else own}/{f.name}" for f in manifest.state_files()}
            names |= {f"{own}/manifest.json", *files}
        return names

    def _written(self, checkpoint_id: CheckpointId) -> Manifest:
        """A file of its own, one to be shared, and the newest shared one of the point before."""
        location = self._places.checkpoint(checkpoint_id)
        stem = f"rows-a{self._attempt}"
        own = self._write(location, stem)
        name = shared_name(checkpoint_id, self._attempt, "rows")
        new = self._write(shared_location(location), name)
        shared = [*self._newest_shared(), msgspec.structs.replace(new, is_shared=True)]
        states = [
            _state("own", own, []),
            _state("shared", shared[0], [StatePart(name="", file=file) for file in shared[1:]]),
        ]
        operator = OperatorSnapshot(uid=Uid("both"), states=states)
        changes: dict[str, Any] = {"checkpoint_id": checkpoint_id, "attempt": self._attempt}
        return manifest_of([[operator]], run_id=self._places.run_id, **changes)

    def _write(self, location: str, stem: str) -> FileHandle:
        rows = [batch_of([(1, 1)])]
        return self._store.write_batches(location, stem, SCHEMA, rows, open_format=False)

    def _newest_shared(self) -> list[FileHandle]:
        for point in self.points.newest_first():
            files = self._store.manifest(point.location).state_files()
            return [file for file in files if file.is_shared][-1:]
        return []

    def _discard(self, point: RetainedPoint) -> None:
        then = self._shared.on_discarded(self._attempt, point)
        self._files.discard_retained(self._attempt, point, then)


class Inline(Executor):
    """Everything at once, so that a death ends all of it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def disk_with_a_run(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> tuple[DurableDisk, SnapshotPlaces]:
    """The run's directory is there, its checkpoints' is not."""
    directory = RunDirectory.of(root, PIPELINE, RUN)
    directory.path.mkdir(parents=True)
    places = SnapshotPlaces.of(directory, parse_settings({}))
    return DurableDisk(monkeypatch, root), places


def _state(name: str, file: FileHandle, parts: list[StatePart]) -> StateHandle:
    return StateHandle(
        state=name,
        kind="table",
        file=file,
        key_groups=(0, 127),
        rows=1,
        schema={},
        format=StateFormat.DELTAS if parts else StateFormat.ROWS,
        parts=parts,
    )
