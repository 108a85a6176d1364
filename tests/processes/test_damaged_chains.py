"""A file that checkpoints share is damaged during the run; then everything is killed.

The source is held, so that the state does not change: left alone, all checkpoints would refer to
the same files for ever.
"""

import os
import signal
from pathlib import Path

import pytest

from pipelines.bus.inbox import report_damage
from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointFailed,
    DamageRemembered,
    FailureOccurred,
    RestorePointRefused,
)
from pipelines.domain.status import DamageFinder, JobStatus
from pipelines.points.preflight import RestoreQuestion, preflight
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run, hurry
from tests.processes.incremental_runs import BACKENDS, points_of, settings_of, shared_files_of
from tests.processes.numbers import HELD_AT, assert_exact

pytestmark = pytest.mark.slow

STEP_S = 60.0
HELD = {"held_at": str(HELD_AT)}
LOOKS_OFTEN = {"execution.checkpointing.verification-interval": "50 ms"}
NEVER_LOOKS = {"execution.checkpointing.verification-interval": "0"}


@BACKENDS
@pytest.mark.parametrize("finder", ["schedule", "checkpoint", "another process"])
def test_once_damage_is_found_no_checkpoint_needs_the_file_even_after_a_kill(
    tmp_path: Path, backend: str, finder: str
) -> None:
    """Three finders meet the damage in turn.

    Another read of the points finds an altered file, on schedule or because a preflight found
    damage. The next checkpoint finds a deleted one. The run keeps one point, so every point refers
    to the file.
    """
    looks = LOOKS_OFTEN if finder == "schedule" else NEVER_LOOKS
    keeps = {"execution.checkpointing.num-retained": "1"}
    settings = {**settings_of(backend, tmp_path / "local"), **looks, **keeps}
    never_noticed = True
    with hosted_run(tmp_path, HELD, settings=settings) as run:
        damaged = the_only_shared_files(run)[0]
        if finder == "checkpoint":
            damaged.unlink()
        else:
            damaged.write_bytes(bytes(reversed(damaged.read_bytes())))
        if finder == "another process":
            run.wait_for_more(2, STEP_S)
            never_noticed = not run.of(DamageRemembered)
            find_by_preflight(run)
        run.wait_for(lambda _: bool(run.of(DamageRemembered)), STEP_S)
        run.wait_for_more(2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
    [found] = remembered_in(run)
    store = FileSystemCheckpointStore([str(run.directory.path)])
    newest = max(points_of(run), key=number_of)
    uses, damages = shared_files_of(Path(newest)), store.verify(newest)

    with hosted_run(tmp_path, run_id=run.directory.run_id) as successor:
        hurry(tmp_path)
        ended = successor.wait_until_over(STEP_S)

    by = DamageFinder.CHECKPOINT if finder == "checkpoint" else DamageFinder.VERIFICATION
    assert (found.found_by, found.files) == (by, [damaged.name])
    assert never_noticed, "checkpoints were built upon the file until the driver was asked"
    assert uses
    assert damaged.name not in uses
    assert damages == []
    assert [e.event for e in run.of(FailureOccurred)] == []
    assert ended.status is JobStatus.FINISHED, ended.reason
    assert_exact(tmp_path / "output")


def test_exactly_the_points_that_refer_to_the_damaged_file_are_marked(
    tmp_path: Path,
) -> None:
    keeps = {"execution.checkpointing.num-retained": "1000"}
    settings = {**settings_of("rocksdb", tmp_path / "local"), **NEVER_LOOKS, **keeps}
    with hosted_run(tmp_path, HELD, settings=settings) as run:
        damaged = a_shared_file(run)
        damaged.unlink()
        run.wait_for(lambda _: bool(run.of(DamageRemembered)), STEP_S)
        run.wait_for_more(2, STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
    [found] = remembered_in(run)
    refers = {p for p in points_of(run) if damaged.name in shared_files_of(Path(p))}
    completed = sequences_of(run, CheckpointCompleted)
    [found_at] = sequences_of(run, DamageRemembered)

    marked = {e.event.path for e in run.of(RestorePointRefused)}  # type: ignore[attr-defined]
    assert set(found.points) == refers == marked
    assert len(refers) > 2
    assert len(points_of(run)) - len(refers) >= sum(n > found_at for n in completed) >= 2
    failed = {e.event.reason.name for e in run.of(CheckpointFailed)}  # type: ignore[attr-defined]
    assert failed == {"DAMAGED_FILE"}


def test_a_driver_that_takes_over_tries_points_marked_as_damaged_last(tmp_path: Path) -> None:
    """It tries points without the file first, and the others when none of those is left."""
    keeps = {"execution.checkpointing.num-retained": "1000"}
    settings = {**settings_of("rocksdb", tmp_path / "local"), **NEVER_LOOKS, **keeps}
    with hosted_run(tmp_path, HELD, settings=settings) as run:
        damaged = a_shared_file(run)
        damaged.unlink()
        run.wait_for(lambda _: bool(run.of(DamageRemembered)), STEP_S)
        run.wait_for_more(1, STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
    [found] = remembered_in(run)
    known = {p: damaged.name in shared_files_of(Path(p)) for p in points_of(run)}
    without = [path for path, refers in known.items() if not refers]
    for path in without:
        (Path(path) / "manifest.json").write_bytes(b"damaged, too")

    with hosted_run(tmp_path, run_id=run.directory.run_id) as successor:
        ended = successor.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert "No recovery point of this run can be used" in ended.reason
    refused = [e.event.path for e in successor.of(RestorePointRefused)]  # type: ignore[attr-defined]
    tried = refused[len(found.points) :]
    assert tried[: len(without)] == sorted(without, key=number_of, reverse=True)  # whole ones first
    assert set(tried[len(without) :]) == set(found.points)


def find_by_preflight(run: StartedRun) -> None:
    """Looks into the newest point and reports the damage, as the control plane does."""
    path = run.completed()[-1].path
    store = FileSystemCheckpointStore([str(run.directory.path)])
    question = RestoreQuestion(
        path=path, flow="numbers", parameters={}, parallelism=2, max_parallelism=128
    )
    refused = preflight(question, store).refusals
    assert refused
    report_damage(run.directory, path, refused[0], found_by="control plane", wall_ms=0)


def the_only_shared_files(run: StartedRun) -> list[Path]:
    """Returns the shared files of a run that keeps one point, once its state no longer changes."""
    newest = settled(run)
    return sorted((newest.parent / "shared").glob("c*"))


def a_shared_file(run: StartedRun) -> Path:
    """Returns a shared file of the newest point, in a run that keeps all points."""
    newest = settled(run)
    return newest.parent / "shared" / min(shared_files_of(newest))


def settled(run: StartedRun) -> Path:
    """Returns the newest point, once a few have been cut with the same state."""
    run.wait_until_cut_at(HELD_AT, STEP_S)
    run.wait_for_more(3, STEP_S)
    return Path(run.completed()[-1].path)


def remembered_in(run: StartedRun) -> list[DamageRemembered]:
    found = [envelope.event for envelope in run.of(DamageRemembered)]
    return [event for event in found if isinstance(event, DamageRemembered) and event.files]


def sequences_of(run: StartedRun, kind: type[CheckpointCompleted | DamageRemembered]) -> list[int]:
    return [envelope.sequence for envelope in run.of(kind)]


def number_of(path: str) -> int:
    return int(path.rpartition("-")[2])
