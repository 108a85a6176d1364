"""Each process is killed at each named point; the output stays that of an undisturbed run."""

import random
import signal
from pathlib import Path

import pytest

from pipelines.bus.inbox import submit
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointTriggered,
    FailureOccurred,
    MetricsSampled,
    RecoveryPhaseReached,
    RunEnded,
    SlotConnected,
    SubtaskSample,
)
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import RequestId, RunId
from pipelines.domain.status import CheckpointKind, JobStatus, RecoveryPhase
from pipelines.protocol.restart import STEPS
from tests.driven_run import StartedRun
from tests.processes.audits import assert_proven
from tests.processes.damaged_points import alter, manifests, number_of
from tests.processes.fault_points import CHECKPOINT_POINTS, RECOVERY_POINTS
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_exact

pytestmark = pytest.mark.slow

STEP_S = 60.0
TOTAL = 3_600
PACED = {"pause_ms": "30", "total": str(TOTAL)}  # does not end until it is hurried
SOONER = "50 ms"
NTH = 2


@pytest.mark.parametrize("point", CHECKPOINT_POINTS)
def test_a_slot_killed_at_any_point_of_a_checkpoint_changes_nothing(
    tmp_path: Path, point: FaultPoint
) -> None:
    with hosted_run(tmp_path, PACED, settings=plan(f"kill {point} slot=1 nth={NTH}")) as run:
        ended = hurried_after_failures(run, tmp_path, 1)

    assert ended.status is JobStatus.FINISHED
    assert [e.event.slot for e in run.of(FailureOccurred)] == [1]  # type: ignore[attr-defined]
    assert_exact(tmp_path / "output", TOTAL)
    assert_proven(tmp_path, TOTAL)


@pytest.mark.parametrize(
    ("action", "point"), [("kill", FaultPoint.RESTORED), ("fail", FaultPoint.RESTORING)]
)
def test_a_restore_that_fails_twice_in_a_row_succeeds_in_the_end(
    tmp_path: Path, action: str, point: FaultPoint
) -> None:
    faults = f"kill cutting slot=0 nth={NTH}; {action} {point} slot=1 attempt=2;"
    faults += f"{action} {point} slot=0 attempt=3"

    with hosted_run(tmp_path, PACED, settings=plan(faults)) as run:
        ended = hurried_after_failures(run, tmp_path, 3)

    assert ended.status is JobStatus.FINISHED
    assert len(run.of(FailureOccurred)) == 3
    assert steps_of(run) == [*[list(STEPS[:-1])] * 2, list(STEPS)]
    assert_exact(tmp_path / "output", TOTAL)


@pytest.mark.parametrize("point", CHECKPOINT_POINTS)
def test_a_run_recovers_from_an_exception_at_any_point_of_a_checkpoint(
    tmp_path: Path, point: FaultPoint
) -> None:
    with hosted_run(tmp_path, PACED, settings=plan(f"fail {point} slot=0 nth={NTH}")) as run:
        ended = hurried_after_failures(run, tmp_path, 1)

    (cause,) = [e.event.cause for e in run.of(FailureOccurred)]  # type: ignore[attr-defined]
    assert f"a fault on purpose while {point}" in cause
    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output", TOTAL)


def test_a_driver_killed_before_the_manifest_restores_the_checkpoint_before(
    tmp_path: Path,
) -> None:
    run, ended = killed_and_replaced(tmp_path, f"kill acknowledged nth={NTH}")

    newest = max(e.event.checkpoint_id for e in run.of(CheckpointTriggered) if e.attempt == 1)  # type: ignore[attr-defined]
    assert restored_ids(run) == [newest - 1]
    assert steps_of(run) == [list(STEPS)]
    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output", TOTAL)


def test_a_driver_killed_after_the_manifest_restores_it_even_if_unannounced(
    tmp_path: Path,
) -> None:
    run, ended = killed_and_replaced(tmp_path, f"kill published nth={NTH}")

    newest = max(e.event.checkpoint_id for e in run.of(CheckpointTriggered) if e.attempt == 1)  # type: ignore[attr-defined]
    told = [e.event.checkpoint_id for e in run.of(CheckpointCompleted) if e.attempt == 1]  # type: ignore[attr-defined]
    assert restored_ids(run) == [newest]
    assert newest not in told
    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output", TOTAL)


@pytest.mark.parametrize("point", RECOVERY_POINTS)
def test_a_driver_killed_in_the_middle_of_a_recovery_is_replaced(
    tmp_path: Path, point: FaultPoint
) -> None:
    attempt = 1 if point is FaultPoint.RESTARTING else 2
    faults = f"kill cutting slot=0 nth={NTH}; kill {point} attempt={attempt}"

    run, ended = killed_and_replaced(tmp_path, faults)

    attempts = [e.attempt for e in run.of(SlotConnected)]
    assert attempts == sorted(attempts)
    assert attempts[-1] == attempt + 1
    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output", TOTAL)


def test_processes_that_die_during_a_takeover_all_restore_the_same_point(
    tmp_path: Path,
) -> None:
    """Two drivers die before any slot has begun, then a slot that has committed prepared output.

    The point is so old that output has become visible since; they have to set it aside.
    """
    faults = "kill published nth=6; kill rewinding attempt=2; kill rewound attempt=3;"
    faults += "kill opened slot=1 attempt=4 nth=2"
    run = killed(tmp_path, faults)
    *_, whole, third, second, newest = manifests(run.directory)
    for damaged in (third, second, newest):
        alter(damaged)
    for _ in range(2):
        killed(tmp_path, run_id=run.directory.run_id)

    hurry(tmp_path)
    with hosted_run(tmp_path, run_id=run.directory.run_id) as successor:
        ended = successor.wait_until_over(STEP_S)

    assert {e.attempt for e in successor.of(SlotConnected)} == {1, 4, 5}
    assert restored_ids(successor) == [number_of(whole)] * 4
    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output", TOTAL)
    assert_proven(tmp_path, TOTAL)


def test_all_slots_lost_at_once_are_one_failure_with_every_phase(tmp_path: Path) -> None:
    with hosted_run(tmp_path, PACED, settings=plan(f"kill cutting nth={NTH}")) as run:
        ended = hurried_after_failures(run, tmp_path, 1)

    assert ended.status is JobStatus.FINISHED
    assert len(run.of(FailureOccurred)) == 1
    assert steps_of(run) == [list(STEPS)]
    durations = [e.event.duration_ms for e in run.of(RecoveryPhaseReached)]  # type: ignore[attr-defined]
    assert min(durations) >= 0
    assert_exact(tmp_path / "output", TOTAL)


def test_a_failure_before_the_first_checkpoint_starts_the_run_over(tmp_path: Path) -> None:
    with hosted_run(tmp_path, PACED, settings=plan("kill uploaded slot=0")) as run:
        ended = hurried_after_failures(run, tmp_path, 1)

    assert restored_ids(run) == [None]
    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output", TOTAL)


def test_a_stop_whose_commits_fail_ends_with_its_savepoint_and_commits_once(tmp_path: Path) -> None:
    never = {**plan("kill committing slot=1"), "execution.checkpointing.interval": "1 h"}
    stop = StopWithSavepoint(request_id=RequestId("stop"), requested_by="t", reason="t")
    with hosted_run(tmp_path, PACED, settings=never) as run:
        run.wait_for(lambda _: any(s.records_in for s in samples_of(run)), STEP_S)
        submit(run.directory, stop)
        ended = run.wait_until_over(STEP_S)
    (savepoint,) = [event for event in run.completed() if event.kind is CheckpointKind.SAVEPOINT]

    with hosted_run(tmp_path, {"total": str(TOTAL)}, restore_from=savepoint.path) as continued:
        continued.wait_until_over(STEP_S)

    assert restored_ids(run) == [savepoint.checkpoint_id]
    assert ended.status is JobStatus.FINISHED
    assert ended.reason == f"Stopped with the savepoint {savepoint.path}."
    assert_exact(tmp_path / "output", TOTAL)


@pytest.mark.parametrize("seed", [1])
def test_five_kills_at_random_points_change_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    kills = [
        f"kill {rng.choice(CHECKPOINT_POINTS)} slot={rng.randint(0, 1)} attempt={attempt}"
        f" nth={rng.randint(1, 2)}"
        for attempt in range(1, 6)
    ]

    with hosted_run(tmp_path, PACED, settings=plan("; ".join(kills))) as run:
        ended = hurried_after_failures(run, tmp_path, 5)

    assert ended.status is JobStatus.FINISHED
    assert len(run.of(FailureOccurred)) == 5
    assert_exact(tmp_path / "output", TOTAL)


def test_a_plan_is_refused_where_faults_are_not_allowed(tmp_path: Path) -> None:
    with hosted_run(tmp_path, settings=plan("kill cutting"), allows_faults=False) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert "does not allow faults" in ended.reason


def plan(faults: str) -> dict[str, str]:
    return {
        "execution.checkpointing.interval": SOONER,
        "execution.checkpointing.num-retained": "100",
        "restart-strategy.exponential-delay.initial-backoff": "10 ms",
        "testing.faults": faults,
    }


def killed_and_replaced(root: Path, faults: str) -> tuple[StartedRun, RunEnded]:
    run = killed(root, faults)
    hurry(root)
    with hosted_run(root, run_id=run.directory.run_id) as successor:
        ended = successor.wait_until_over(STEP_S)
    return successor, ended


def killed(root: Path, faults: str = "", run_id: RunId | None = None) -> StartedRun:
    with hosted_run(root, PACED, settings=plan(faults), run_id=run_id) as run:
        exit_code = run.process.wait(STEP_S)
    assert exit_code == -signal.SIGKILL, "the fault was met"
    return run


def hurried_after_failures(run: StartedRun, root: Path, count: int) -> RunEnded:
    run.wait_for(lambda _: len(run.of(FailureOccurred)) >= count, STEP_S)
    hurry(root)
    return run.wait_until_over(STEP_S)


def samples_of(run: StartedRun) -> list[SubtaskSample]:
    events = (envelope.event for envelope in run.of(MetricsSampled))
    return [s for event in events if isinstance(event, MetricsSampled) for s in event.subtasks]


def restored_ids(run: StartedRun) -> list[int | None]:
    reached = [e.event for e in run.of(RecoveryPhaseReached)]
    return [
        e.restored_checkpoint_id
        for e in reached
        if isinstance(e, RecoveryPhaseReached) and e.phase is RecoveryPhase.DECIDE
    ]


def steps_of(run: StartedRun) -> list[list[RecoveryPhase]]:
    """Returns the steps that each recovery reached, without its milestones."""
    recoveries: list[list[RecoveryPhase]] = []
    for envelope in run.of(RecoveryPhaseReached):
        phase = envelope.event.phase  # type: ignore[attr-defined]
        if phase is RecoveryPhase.DETECT:
            recoveries.append([])
        if phase in STEPS:
            recoveries[-1].append(phase)
    return recoveries
