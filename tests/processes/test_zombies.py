"""A slot that was stopped, replaced and continued changes nothing, is reported and ends itself."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from pipelines.domain.events import CheckpointCompleted, SlotConnected, SlotLost, ZombieRefused
from pipelines.domain.faults import FaultPoint
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_exact

pytestmark = pytest.mark.slow

STEP_S = 30.0
PACED = {"pause_ms": "150"}  # 5 s, of which no test waits for the end
SOON = {
    "execution.checkpointing.interval": "50 ms",
    "heartbeat.interval": "100 ms",
    "heartbeat.timeout": "700 ms",
}


@pytest.mark.parametrize("point", [FaultPoint.UPLOADED, FaultPoint.COMMITTING])
def test_a_slot_stopped_at_a_point_and_continued_after_its_replacement(
    tmp_path: Path, point: FaultPoint
) -> None:
    faults = {"testing.faults": f"stop {point} slot=1 nth=2"}
    with hosted_run(tmp_path, PACED, settings={**SOON, **faults}) as run:
        run.wait_for(lambda _: bool(run.of(SlotLost)), STEP_S)
        (lost,) = run.of(SlotLost)
        run.wait_for(lambda _: completed_of(run, attempt=2) >= 2, STEP_S)
        zombie = psutil.Process(lost.event.pid)  # type: ignore[attr-defined]
        os.kill(zombie.pid, signal.SIGCONT)
        run.wait_for(lambda _: bool(run.of(ZombieRefused)), STEP_S)
        assert_gone(zombie)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    refused = [e.event for e in run.of(ZombieRefused)]
    assert "silent for longer than heartbeat.timeout" in lost.event.reason  # type: ignore[attr-defined]
    assert 1 in {e.zombie_attempt for e in refused}  # type: ignore[attr-defined]
    assert ended.status is JobStatus.FINISHED
    assert {e.attempt for e in run.of(SlotConnected)} == {1, 2}
    assert_exact(tmp_path / "output")


def test_slots_whose_driver_is_stopped_end_themselves(tmp_path: Path) -> None:
    with hosted_run(tmp_path, PACED, settings=SOON) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        slots = [psutil.Process(e.event.pid) for e in run.of(SlotConnected)]  # type: ignore[attr-defined]
        os.kill(run.process.pid, signal.SIGSTOP)
        for slot in slots:
            assert_gone(slot)
        os.kill(run.process.pid, signal.SIGCONT)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert_exact(tmp_path / "output")


def completed_of(run: StartedRun, attempt: int) -> int:
    return sum(e.attempt == attempt for e in run.of(CheckpointCompleted))


def assert_gone(process: psutil.Process) -> None:
    deadline = time.monotonic() + STEP_S
    while is_alive(process):
        assert time.monotonic() < deadline, f"{process} lives on"
        time.sleep(0.02)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
