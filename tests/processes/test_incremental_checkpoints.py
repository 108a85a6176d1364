"""Runs whose checkpoints refer to each other's files, through kills, restarts and restores."""

import os
import signal
from pathlib import Path

import pandas as pd
import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import Cancel
from pipelines.domain.events import FailureOccurred, SlotConnected
from pipelines.domain.status import JobStatus
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.processes.host import hosted_run, hurry
from tests.processes.incremental_runs import BACKENDS, points_of, settings_of, shared_files_of
from tests.processes.numbers import HELD_AT, assert_exact, assert_rows_exact, committed
from tests.processes.savepoint_requests import WHO
from tests.stopped_processes import stopped_slot

pytestmark = pytest.mark.slow

STEP_S = 60.0
SLOWLY = {"pause_ms": "150"}  # 5 s; no test waits for the end


@BACKENDS
def test_kills_change_nothing_and_leave_no_file_behind(tmp_path: Path, backend: str) -> None:
    local = tmp_path / "local"
    with hosted_run(tmp_path, SLOWLY, settings=settings_of(backend, local)) as run:
        for slot in (0, 1):
            run.wait_for_more(4, STEP_S)
            os.kill(run.pid_of(slot), signal.SIGKILL)
            attempts = 2 * (slot + 2)
            run.wait_for(lambda _, n=attempts: len(run.of(SlotConnected)) >= n, STEP_S)  # type: ignore[misc]
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, ended.reason
    assert_exact(tmp_path / "output")
    assert points_of(run) == []  # a finished run keeps savepoints only
    assert list((run.directory.path / "checkpoints" / "shared").iterdir()) == []
    assert not list(local.glob("*"))


@BACKENDS
@pytest.mark.parametrize("parallelism", [1, 3])
def test_either_backend_restores_an_incremental_point_at_any_parallelism(
    tmp_path: Path, backend: str, parallelism: int
) -> None:
    held, settings = {"held_at": str(HELD_AT)}, settings_of(backend, tmp_path / "a")
    with hosted_run(tmp_path, held, settings=settings) as first:
        first.wait_until_cut_at(HELD_AT, STEP_S)
        first.wait_for_more(2, STEP_S)
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(STEP_S)
    older, path = (each.path for each in first.completed()[-2:])
    assert shared_files_of(Path(path)) & shared_files_of(Path(older))
    store = FileSystemCheckpointStore([str(first.directory.path)])
    assert points_of(first)
    assert all(store.verify(location) == [] for location in points_of(first))

    other = "hashmap" if backend == "rocksdb" else "rocksdb"
    with hosted_run(
        tmp_path,
        settings=settings_of(other, tmp_path / "b"),
        parallelism=parallelism,
        restore_from=path,
    ) as second:
        hurry(tmp_path)
        ended = second.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, ended.reason
    assert_rows_exact(tmp_path / "output")


def test_a_base_file_deleted_during_a_restore_is_named_and_changes_no_output(
    tmp_path: Path,
) -> None:
    """This happens if the original of a fork continues and its retention deletes the point."""
    settings = settings_of("hashmap", tmp_path / "local")
    with hosted_run(tmp_path, {"held_at": str(HELD_AT)}, settings=settings) as first:
        first.wait_until_cut_at(HELD_AT, STEP_S)
        submit(first.directory, Cancel(**WHO))
        assert first.wait_until_over(STEP_S).status is JobStatus.CANCELED
    point = Path(first.completed()[-1].path)
    base = next(name for name in shared_files_of(point, subtasks=(1,)) if "base" in name)
    shown = committed(tmp_path / "output")

    stopping = {**settings, "testing.faults": "stop restoring slot=1 attempt=1"}
    with hosted_run(tmp_path, settings=stopping, restore_from=str(point)) as fork:
        slot = stopped_slot(fork, 1, attempt=1, within_s=STEP_S)
        (point.parent / "shared" / base).unlink()
        slot.resume()
        ended = fork.wait_until_over(STEP_S)

    [failure] = [e.event.cause for e in fork.of(FailureOccurred)]  # type: ignore[attr-defined]
    assert ended.status is JobStatus.FAILED
    assert base in failure
    assert base in ended.reason
    pd.testing.assert_frame_equal(committed(tmp_path / "output"), shown)
