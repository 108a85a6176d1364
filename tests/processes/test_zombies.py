"""A slot that was stopped, replaced and continued changes nothing, is reported and ends itself."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from pipelines.domain.events import CheckpointCompleted, SlotConnected, SlotLost, ZombieRefused
from pipelines.domain.faults import FaultPoint
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.fault_points import CHECKPOINT_POINTS, RESTORE_POINTS
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_exact
from tests.stopped_processes import stopped_slot, wait_until_gone

pytestmark = pytest.mark.slow

STEP_S = 60.0
PACED = {"pause_ms": "150"}  # 5 s; no test waits for the end
SOON = {
    "execution.checkpointing.interval": "50 ms",
    "heartbeat.interval": "100 ms",
    "heartbeat.timeout": "1500 ms",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
}
NTH = 4  # by then there is a checkpoint to restore, and output to commit


@pytest.mark.parametrize("point", [*CHECKPOINT_POINTS, *RESTORE_POINTS])
def test_a_stopped_and_replaced_slot_is_refused_when_it_continues(
    tmp_path: Path, point: FaultPoint
) -> None:
    attempt = 2 if point in RESTORE_POINTS else 1
    with hosted_run(tmp_path, PACED, settings={**SOON, "testing.faults": stop_at(point)}) as run:
        zombie = stopped_slot(run, 1, attempt=attempt, within_s=STEP_S)
        run.wait_for(lambda _: zombie.pid in losses(run), STEP_S)
        run.wait_for(lambda _: completed_after(run, attempt) >= 2, STEP_S)
        zombie.resume()
        run.wait_for(lambda _: attempt in refused_attempts(run), STEP_S)
        wait_until_gone(zombie, STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert "silent for longer than heartbeat.timeout" in losses(run)[zombie.pid]
    assert ended.status is JobStatus.FINISHED
    assert {e.attempt for e in run.of(SlotConnected)} >= set(range(1, attempt + 2))
    assert_exact(tmp_path / "output")


def test_slots_whose_driver_is_stopped_end_themselves(tmp_path: Path) -> None:
    with hosted_run(tmp_path, PACED, settings=SOON) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        slots = [psutil.Process(e.event.pid) for e in run.of(SlotConnected)]  # type: ignore[attr-defined]
        os.kill(run.process.pid, signal.SIGSTOP)
        for slot in slots:
            wait_until_gone(slot, STEP_S)
        os.kill(run.process.pid, signal.SIGCONT)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")


def stop_at(point: FaultPoint) -> str:
    if point in RESTORE_POINTS:
        return f"kill cutting slot=0 nth={NTH}; stop {point} slot=1 attempt=2"
    return f"stop {point} slot=1 nth={NTH}"


def losses(run: StartedRun) -> dict[int, str]:
    """Returns {pid: why its slot was given up}."""
    events = [e.event for e in run.of(SlotLost)]
    return {e.pid: e.reason for e in events if isinstance(e, SlotLost)}


def refused_attempts(run: StartedRun) -> set[int]:
    events = [e.event for e in run.of(ZombieRefused)]
    return {e.zombie_attempt for e in events if isinstance(e, ZombieRefused)}


def completed_after(run: StartedRun, attempt: int) -> int:
    """Counts checkpoints of the next attempt, or of later ones if a slow machine loses that too."""
    return sum(e.attempt > attempt for e in run.of(CheckpointCompleted))
