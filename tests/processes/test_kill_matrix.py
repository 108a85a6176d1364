"""Each process dies while the other is at each named point; a restore dies three times in a row.

The process at the point stands still, so the kill falls exactly there.

`test_fault_points` covers a process that dies at its own point, and
`tests/integration/test_exactly_once_on_spark` an executor with its slots. Worker, beat, projector,
web server and Redis have no points of their own: they only read the journal and write requests, so
no moment of a checkpoint is theirs (`tests/integration/test_control_plane_killed`).
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipelines.domain.events import FailureOccurred, RunEnded, SlotConnected
from pipelines.domain.faults import FaultPoint
from pipelines.domain.status import JobStatus
from tests.processes.audits import assert_proven
from tests.processes.fault_points import (
    CHECKPOINT_POINTS,
    DRIVER_POINTS,
    RECOVERY_POINTS,
    RESTORE_POINTS,
)
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_exact
from tests.stopped_processes import stopped_slot, wait_until_stopped

pytestmark = pytest.mark.slow

STEP_S = 60.0
TOTAL = 12_000
PACED = {"pause_ms": "60", "total": str(TOTAL)}  # does not end until it is hurried
NTH = 4  # by then every checkpoint has output to commit


@pytest.mark.parametrize("point", [*CHECKPOINT_POINTS, *RESTORE_POINTS])
def test_a_driver_that_dies_while_a_slot_is_at_a_fault_point_is_replaced(
    tmp_path: Path, point: FaultPoint
) -> None:
    """The stopped slot finds its driver gone when it continues, and ends itself."""
    with hosted_run(tmp_path, PACED, settings=plan(stop_at(point))) as run:
        attempt = 2 if point in RESTORE_POINTS else 1
        slot = stopped_slot(run, 1, attempt=attempt, within_s=STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
        slot.resume()
        slot.wait(STEP_S)
    with hosted_run(tmp_path, run_id=run.directory.run_id) as successor:
        hurry(tmp_path)
        ended = successor.wait_until_over(STEP_S)

    assert_recovered(tmp_path, ended)


@pytest.mark.parametrize("point", [p for p in DRIVER_POINTS if p not in RECOVERY_POINTS[1:]])
def test_a_slot_that_dies_while_the_driver_is_at_a_fault_point_is_replaced(
    tmp_path: Path, point: FaultPoint
) -> None:
    lost = f"kill cutting slot=0 nth={NTH}; " if point is FaultPoint.RESTARTING else ""
    nth = "" if lost else f" nth={NTH}"
    with hosted_run(tmp_path, PACED, settings=plan(f"{lost}stop {point}{nth}")) as run:
        driver = psutil.Process(run.process.pid)
        wait_until_stopped(driver, STEP_S)
        with suppress(ProcessLookupError):  # a slot of an attempt that is already over
            os.kill(run.pid_of(1), signal.SIGKILL)
        driver.resume()
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert run.of(FailureOccurred)
    assert_recovered(tmp_path, ended)


@pytest.mark.parametrize("point", RESTORE_POINTS)
def test_a_restore_that_dies_three_times_in_a_row_succeeds_in_the_end(
    tmp_path: Path, point: FaultPoint
) -> None:
    kills = [f"kill {point} slot={attempt % 2} attempt={attempt}" for attempt in (2, 3, 4)]
    faults = "; ".join([f"kill committing slot=0 nth={NTH}", *kills])
    with hosted_run(tmp_path, PACED, settings=plan(faults)) as run:
        run.wait_for(lambda _: len(run.of(FailureOccurred)) == 4, STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert {e.attempt for e in run.of(SlotConnected)} == {1, 2, 3, 4, 5}
    assert_recovered(tmp_path, ended)


def stop_at(point: FaultPoint) -> str:
    if point in RESTORE_POINTS:
        return f"kill cutting slot=0 nth={NTH}; stop {point} slot=1 attempt=2"
    return f"stop {point} slot=1 nth={NTH}"


def plan(faults: str) -> dict[str, str]:
    return {
        "execution.checkpointing.interval": "50 ms",
        "restart-strategy.exponential-delay.initial-backoff": "10 ms",
        "testing.faults": faults,
    }


def assert_recovered(root: Path, ended: RunEnded) -> None:
    assert ended.status is JobStatus.FINISHED, ended.reason
    assert_exact(root / "output", TOTAL)
    assert_proven(root, TOTAL)
