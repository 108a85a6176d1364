"""Savepoints of real processes: taken in either format, moved, restored elsewhere; output exact."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import (
    Cancel,
    CancelWithSavepoint,
    StopWithSavepoint,
    TakeSavepoint,
)
from pipelines.domain.events import (
    CheckpointCompleted,
    ClaimedPointDiscarded,
    RecoveryPhaseReached,
    SlotConnected,
)
from pipelines.domain.status import (
    ClaimMode,
    JobStatus,
    RecoveryPhase,
    SavepointFormat,
)
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import (
    HELD_AT,
    TOTAL,
    assert_exact,
    assert_rows_exact,
    committed,
    expected,
)
from tests.processes.savepoint_requests import WHO, manifest_of, savepoint_by

pytestmark = pytest.mark.slow

STEP_S = 60.0
PACED = {"pause_ms": "30", "total": str(TOTAL)}  # does not end until it is hurried
OFTEN = {"execution.checkpointing.interval": "50 ms"}
NEVER = {"execution.checkpointing.interval": "10 min"}
INCREMENTAL = {**OFTEN, "execution.checkpointing.incremental": "true"}
BACKENDS = {
    "HASHMAP": {**INCREMENTAL, "state.backend.type": "hashmap"},
    "ROCKSDB": {**INCREMENTAL, "state.backend.type": "rocksdb"},
}
CANONICAL, NATIVE = SavepointFormat.CANONICAL, SavepointFormat.NATIVE


@pytest.mark.parametrize(
    ("settings", "taken_as", "parallelism", "held_as"),
    [
        ("HASHMAP", CANONICAL, 3, {"a1.parquet"}),
        ("HASHMAP", NATIVE, 1, {"a1.arrow"}),
        ("ROCKSDB", CANONICAL, 1, {"a1.parquet"}),
        ("ROCKSDB", NATIVE, 2, {"sst", "CURRENT", "MANIFEST", "schema.arrow"}),
        ("ROCKSDB", NATIVE, 3, {"sst", "CURRENT", "MANIFEST", "schema.arrow"}),
    ],
)
def test_a_stopped_run_resumes_at_any_parallelism_format_and_backend(
    tmp_path: Path, settings: str, taken_as: SavepointFormat, parallelism: int, held_as: set[str]
) -> None:
    with running(tmp_path, BACKENDS[settings]) as run:
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO, format=taken_as))
        assert run.wait_until_over(STEP_S).status is JobStatus.FINISHED

    names = {file.name for file in savepoint.iterdir()} - {"manifest.json"}
    assert {kind for kind in held_as for name in names if kind in name} == held_as
    assert all(any(kind in name for kind in held_as) for name in names)
    assert manifest_of(savepoint).savepoint_format is taken_as
    go_on(tmp_path, savepoint, parallelism=parallelism, settings=BACKENDS[settings])
    assert_exact(tmp_path / "output")


def test_a_chain_of_rescales_gives_the_output_of_one_run(tmp_path: Path) -> None:
    savepoint = stopped(tmp_path, 1_300)
    for parallelism, number in ((3, 2_500), (1, HELD_AT), (5, 4_900)):
        with restored(tmp_path, savepoint, held_at(number), parallelism=parallelism) as run:
            run.wait_until_cut_at(number, STEP_S)
            savepoint = savepoint_by(run, StopWithSavepoint(**WHO))
            run.wait_until_over(STEP_S)

    go_on(tmp_path, savepoint, parallelism=4)

    assert_exact(tmp_path / "output")


@pytest.mark.parametrize(
    ("backend", "taken_as"), [("HASHMAP", CANONICAL), ("HASHMAP", NATIVE), ("ROCKSDB", NATIVE)]
)
def test_a_savepoint_is_self_contained_and_may_be_moved(
    tmp_path: Path, backend: str, taken_as: SavepointFormat
) -> None:
    with running(tmp_path, BACKENDS[backend]) as run:
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO, format=taken_as))
        run.wait_until_over(STEP_S)
    moved = tmp_path / "numbers" / "archive" / "before-the-upgrade"
    moved.parent.mkdir()
    shutil.copytree(savepoint, moved)
    shutil.rmtree(savepoint)
    shutil.rmtree(run.directory.path)

    go_on(tmp_path, moved, settings=BACKENDS[backend])

    assert_exact(tmp_path / "output")


def test_a_run_cancelled_with_a_savepoint_ends_canceled_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as run:
        savepoint = savepoint_by(run, CancelWithSavepoint(**WHO))
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.CANCELED
    assert str(savepoint) in ended.reason
    go_on(tmp_path, savepoint)
    assert_exact(tmp_path / "output")


def test_a_crash_after_a_savepoint_restores_it_and_repeats_nothing(tmp_path: Path) -> None:
    with running(tmp_path, NEVER) as run:
        savepoint = savepoint_by(run, TakeSavepoint(**WHO))
        os.kill(run.pid_of(1), signal.SIGKILL)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    decided = [e.event for e in run.of(RecoveryPhaseReached)]
    restored = [e.restored_path for e in decided if e.phase is RecoveryPhase.DECIDE]  # type: ignore[attr-defined]
    assert ended.status is JobStatus.FINISHED
    assert restored == [str(savepoint)]
    assert_exact(tmp_path / "output")


def test_another_pipeline_with_the_same_uids_continues_into_its_own_output(
    tmp_path: Path,
) -> None:
    """The fork writes what comes after the point, and leaves the original's output alone."""
    with running(tmp_path) as run:
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO))
        run.wait_until_over(STEP_S)
    before = committed(tmp_path / "output")

    go_on(tmp_path, savepoint, {"output": str(tmp_path / "fork")}, pipeline="numbers_again")

    after = committed(tmp_path / "fork")
    both = pd.concat([before, after]).sort_values(["window", "key"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(both, expected(TOTAL), check_dtype=False)
    assert 0 < len(after) < len(both)
    pd.testing.assert_frame_equal(committed(tmp_path / "output"), before)


def test_a_claimed_savepoint_is_deleted_once_newer_points_replace_it(tmp_path: Path) -> None:
    savepoint = stopped(tmp_path)

    retaining = {**OFTEN, "execution.checkpointing.num-retained": "1"}
    run = go_on(tmp_path, savepoint, claim_mode=ClaimMode.CLAIM, settings=retaining)

    assert not savepoint.exists()
    assert run.of(ClaimedPointDiscarded)[0].event == ClaimedPointDiscarded(path=str(savepoint))
    assert_exact(tmp_path / "output")


def test_a_claimed_savepoint_stays_until_newer_points_replace_it(tmp_path: Path) -> None:
    savepoint = stopped(tmp_path)

    run = go_on(tmp_path, savepoint, claim_mode=ClaimMode.CLAIM, settings=NEVER)

    assert len(run.completed()) == 1  # the final one
    assert savepoint.exists()


@pytest.mark.parametrize("claim_mode", ClaimMode)
def test_at_most_once_a_requested_restore_loses_nothing(
    tmp_path: Path, claim_mode: ClaimMode
) -> None:
    """Only a failure costs the state, and a restore of a claimed point is no failure."""
    at_most_once = {**OFTEN, "execution.checkpointing.mode": "AT_MOST_ONCE"}
    with running(tmp_path, at_most_once) as run:
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO))
        run.wait_until_over(STEP_S)

    go_on(tmp_path, savepoint, claim_mode=claim_mode, settings=at_most_once)

    assert_exact(tmp_path / "output")


@pytest.mark.parametrize(
    ("settings", "taken_as"),
    [(OFTEN, CANONICAL), (BACKENDS["ROCKSDB"], NATIVE)],
    ids=["canonical", "native rocksdb"],
)
def test_without_a_claim_the_original_may_be_deleted_after_one_checkpoint(
    tmp_path: Path, settings: dict[str, str], taken_as: SavepointFormat
) -> None:
    with running(tmp_path, settings) as run:
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO, format=taken_as))
        run.wait_until_over(STEP_S)

    go_on_without(tmp_path, savepoint, savepoint, settings)

    assert_exact(tmp_path / "output")


def test_without_a_claim_a_run_with_incremental_checkpoints_may_be_deleted(
    tmp_path: Path,
) -> None:
    """Not every checkpoint builds on others: RocksDB may have just merged all files."""
    settings = BACKENDS["ROCKSDB"]
    retained = {**settings, "execution.checkpointing.num-retained": "1000"}
    with running(tmp_path, retained) as run:
        run.wait_for(lambda _: any(map(is_built_upon_others, run.completed())), STEP_S)
        submit(run.directory, Cancel(**WHO))
        assert run.wait_until_over(STEP_S).status is JobStatus.CANCELED
    checkpoint = next(filter(is_built_upon_others, reversed(run.completed())))

    go_on_without(tmp_path, Path(checkpoint.path), run.directory.path, settings)

    assert_rows_exact(tmp_path / "output")


def test_a_damaged_savepoint_ends_the_run_before_anything_starts(tmp_path: Path) -> None:
    savepoint = stopped(tmp_path)
    damaged = max(savepoint.glob("*.parquet"), key=lambda file: file.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    with restored(tmp_path, savepoint) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert damaged.name in ended.reason
    assert run.of(SlotConnected) == []


@contextmanager
def running(root: Path, settings: dict[str, str] = OFTEN) -> Iterator[StartedRun]:
    """Yields a run held in the middle of a window, after it has written some of its output.

    A point taken now has some state. A run without checkpoints has just begun.
    """
    is_often = settings is not NEVER
    with hosted_run(root, held_at(HELD_AT) if is_often else PACED, settings=settings) as run:
        if is_often:
            run.wait_until_cut_at(HELD_AT, STEP_S)
            run.wait_for(lambda _: len(committed(root / "output")) > 0, STEP_S)
        else:
            run.wait_for(lambda _: len(run.of(SlotConnected)) == 2, STEP_S)
        yield run


def held_at(number: int) -> dict[str, str]:
    return {"held_at": str(number), "total": str(TOTAL)}


def stopped(root: Path, number: int = HELD_AT) -> Path:
    """Returns the savepoint that a run was stopped with at a number."""
    with hosted_run(root, held_at(number), settings=OFTEN) as run:
        run.wait_until_cut_at(number, STEP_S)
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO))
        run.wait_until_over(STEP_S)
    return savepoint


def is_built_upon_others(checkpoint: CheckpointCompleted) -> bool:
    subtasks = manifest_of(Path(checkpoint.path)).subtasks
    handles = [handle for s in subtasks for o in s.operators for handle in o.states]
    return any(file.is_shared for handle in handles for file in handle.files)


def go_on_without(root: Path, point: Path, goes: Path, settings: dict[str, str]) -> None:
    """A restored run with a checkpoint of its own needs nothing of what it began with."""
    with restored(root, point, PACED, settings=settings) as run:
        run.wait_for(lambda _: len(run.completed()) >= 1, STEP_S)
        assert point.exists()
        shutil.rmtree(goes)
        os.kill(run.pid_of(0), signal.SIGKILL)
        hurry(root)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, ended.reason
    assert len(run.of(SlotConnected)) == 4


def go_on(
    root: Path, savepoint: Path, parameters: dict[str, str] | None = None, **spec_fields: object
) -> StartedRun:
    """Restores the savepoint, and runs to the end."""
    with restored(root, savepoint, parameters, **spec_fields) as run:
        ended = run.wait_until_over(STEP_S)
    assert ended.status is JobStatus.FINISHED, ended.reason
    return run


@contextmanager
def restored(
    root: Path,
    savepoint: Path,
    parameters: dict[str, str] | None = None,
    *,
    parallelism: int = 2,
    settings: dict[str, str] = OFTEN,
    **spec: object,
) -> Iterator[StartedRun]:
    first = manifest_of(savepoint).checkpoint_id + 1
    with hosted_run(
        root,
        {"total": str(TOTAL), **(parameters or {})},
        settings=settings,
        parallelism=parallelism,
        restore_from=str(savepoint),
        spec_fields={"first_checkpoint_id": first, **spec},
    ) as run:
        yield run
