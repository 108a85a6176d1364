"""A driver that dies at any step of a checkpoint, with or without a loss of power.

One checkpoint writes its own file and one that later ones share, publishes its manifest, and
retention deletes the checkpoint before. The process ends at step k, for each k. Then another driver
finds the newest checkpoint or the one before, whole. Once it has completed one, nothing else is
left. Source: the crash schedules of ALICE (Pillai et al., OSDI 2014), by what was synced.
"""

import shutil
from pathlib import Path

import pytest

from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.run import RunDirectory, SnapshotPlaces
from pipelines.domain.settings.parsing import parse_settings
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.runtime.master.points_driver import Driver
from tests.unit.runtime.points import PIPELINE
from tests.unit.storage.disks import STEPS_MAX, DurableDisk

pytestmark = pytest.mark.slow

RUN, NEIGHBOUR = RunId("run-1"), RunId("run-2")
OLD, NEW = Attempt(1), Attempt(2)


@pytest.mark.parametrize("power", ["stays", "fails"])
def test_a_death_at_any_step_leaves_the_last_or_previous_point_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: str
) -> None:
    reached = set()
    for step in range(1, STEPS_MAX):
        root = tmp_path / f"{power}-{step}"
        disk, places = disk_with_a_run(monkeypatch, root)
        first = driver(root, places, OLD)
        for checkpoint_id in (1, 2):
            first.take(CheckpointId(checkpoint_id))

        was_killed = disk.kill_at(step, lambda: first.take(CheckpointId(3)))  # noqa: B023
        if power == "fails":
            disk.lose_power()

        second = driver(root, places, NEW)
        chosen = second.chosen()
        assert chosen.checkpoint_id in (2, 3)
        reached.add(chosen.checkpoint_id)
        second.sweep(CheckpointId(4))
        second.take(CheckpointId(4))
        assert stored_in(places) == second.expected()
        shutil.rmtree(root)
        if not was_killed:
            assert reached == {2, 3}
            return
    pytest.fail("a checkpoint takes a bounded number of steps")


def test_the_next_driver_finishes_a_deletion_that_a_death_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, STEPS_MAX):
        root = tmp_path / str(step)
        disk, places = disk_with_a_run(monkeypatch, root)
        first = driver(root, places, OLD, retained=3)
        for checkpoint_id in (1, 2, 3):
            first.take(CheckpointId(checkpoint_id))

        was_killed = disk.kill_at(step, lambda: first.keep(1))  # noqa: B023
        second = driver(root, places, NEW)
        whole = second.points.newest_first()
        assert all(second.problem_of(point) is None for point in whole)
        assert CheckpointId(3) in [point.checkpoint_id for point in whole]
        second.sweep(CheckpointId(4))
        second.take(CheckpointId(4))
        assert stored_in(places) == second.expected()
        shutil.rmtree(root)
        if not was_killed:
            return
    pytest.fail("a deletion takes a bounded number of steps")


@pytest.mark.parametrize("power", ["stays", "fails"])
def test_an_abandoned_point_is_either_whole_or_deleted_after_a_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: str
) -> None:
    for step in range(1, STEPS_MAX):
        root = tmp_path / f"{power}-{step}"
        disk, places = disk_with_a_run(monkeypatch, root)
        first = driver(root, places, OLD, retained=2)
        for checkpoint_id in (1, 2):
            first.take(CheckpointId(checkpoint_id))
        given_up = places.checkpoint(CheckpointId(2))
        second = Driver(
            FileSystemCheckpointStore([str(root)]), places, NEW, retained=2, given_up=[given_up]
        )

        was_killed = disk.kill_at(step, second.delete_given_up)
        if power == "fails":
            disk.lose_power()

        found = driver(root, places, NEW, retained=2).points.newest_first()
        assert all(second.problem_of(point) is None for point in found)
        if not was_killed:
            assert [point.checkpoint_id for point in found] == [1]
            return
        assert [point.checkpoint_id for point in found] in ([2, 1], [1])
        shutil.rmtree(root)
    pytest.fail("a deletion takes a bounded number of steps")


def test_a_run_sweeps_only_its_own_files_in_a_shared_directory(tmp_path: Path) -> None:
    settings = parse_settings({"execution.checkpointing.dir": str(tmp_path)})
    mine, others = (
        SnapshotPlaces.of(RunDirectory.of(tmp_path / "jobs", PIPELINE, run), settings.storage)
        for run in (RUN, NEIGHBOUR)
    )
    drivers = [driver(tmp_path, places, OLD) for places in (mine, others)]
    for each in drivers:
        each.take(CheckpointId(1))
        each.leave_unfinished(CheckpointId(2))
    (tmp_path / RUN / "notes.txt").write_text("somebody else's")
    before = stored_in(others)

    successor = driver(tmp_path, mine, NEW)
    successor.sweep(CheckpointId(3))
    successor.take(CheckpointId(3))

    assert stored_in(others) == before
    assert stored_in(mine) == successor.expected() | {"notes.txt"}


def driver(root: Path, places: SnapshotPlaces, attempt: Attempt, *, retained: int = 1) -> Driver:
    store = FileSystemCheckpointStore([str(root)])
    return Driver(store, places, attempt, retained=retained)


def stored_in(places: SnapshotPlaces) -> set[str]:
    root = Path(places.checkpoints)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def disk_with_a_run(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> tuple[DurableDisk, SnapshotPlaces]:
    """Returns a disk with the run's directory, but without the directory of its checkpoints."""
    directory = RunDirectory.of(root, PIPELINE, RUN)
    directory.path.mkdir(parents=True)
    places = SnapshotPlaces.of(directory, parse_settings({}).storage)
    return DurableDisk(monkeypatch, root), places
