"""A driver that is stopped, replaced by supervision and continued changes nothing.

The output is exact. Engine, lease and supervision are the real ones; slots are plain processes.

The driver acts as if on another machine, so supervision cannot kill it and only the fence protects
the run. The last test kills it.
"""

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from django.conf import LazySettings

from ftdash.supervision import drivers as supervision
from ftdash.supervision import launcher
from pipelines.bus.lease import owner_of
from pipelines.bus.run_log import newest_lines
from pipelines.domain.events import DriverReplaced, RunEnded, RunStarted
from pipelines.domain.faults import FaultPoint
from pipelines.domain.log_lines import LogLine
from pipelines.domain.status import JobStatus
from pipelines.runtime.master.driving import EXIT_LEASE_HELD
from tests.driven_run import StartedRun
from tests.polling import wait_until
from tests.processes.host import ELSEWHERE, STALL, hosted_run, hurry
from tests.processes.numbers import assert_exact
from tests.stopped_processes import wait_until_stopped
from tests.web.journals import new_run

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

STEP_S = 60.0
PACED = {"pause_ms": "150"}  # 5 s; no test waits for the end
SOON = {
    "execution.checkpointing.interval": "50 ms",
    "heartbeat.interval": "100 ms",
    "heartbeat.timeout": "1500 ms",
    "heartbeat.driver-timeout": "3 s",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
}
LINES = 10_000  # more than any run here logs
NTH = 4  # by then there is a checkpoint to restore, and output to commit
POINTS = [
    None,  # between two checkpoints
    FaultPoint.ACKNOWLEDGED,  # no manifest yet
    FaultPoint.PUBLISHED,  # the manifest is durable, no sink may commit yet
    FaultPoint.RESTARTING,
    FaultPoint.REWINDING,  # output of the successor would look like output to set aside
]


@pytest.fixture(autouse=True)
def installation(settings: LazySettings, tmp_path: Path) -> None:
    settings.JOBS_ROOT = tmp_path
    settings.DRIVER_COMMAND = [sys.executable, "-m", "tests.processes.supervised_driver"]
    settings.DRIVER_START_BACKOFF_S = 0.0


@pytest.mark.parametrize("point", POINTS)
def test_a_stopped_driver_is_replaced_and_changes_nothing_when_it_continues(
    tmp_path: Path, point: FaultPoint | None
) -> None:
    with stopped_run(tmp_path, point) as run, supervised(run) as row:
        wait_until(lambda: has_successor(run, row), within_s=STEP_S)
        hurry(tmp_path)
        run.wait_for(lambda es: isinstance(es[-1].event, RunEnded), STEP_S)
        wait_until(lambda: owner_of(run.directory) is None, within_s=STEP_S)
        before, continued_at = everything_in(tmp_path), datetime.now(UTC)

        os.kill(run.process.pid, signal.SIGCONT)
        run.process.wait(STEP_S)

        assert everything_in(tmp_path) == before
        assert [line for line in log_of(run) if line.time > continued_at] == []
        assert_ended_with_a_sentence(run)
        assert_replaced(run, was_killed=False)
        assert_exact(tmp_path / "output")


@pytest.mark.parametrize("point", [FaultPoint.PUBLISHED, FaultPoint.REWINDING])
def test_a_driver_that_continues_beside_its_successor_disturbs_nothing(
    tmp_path: Path, point: FaultPoint
) -> None:
    with stopped_run(tmp_path, point) as run, supervised(run) as row:
        wait_until(lambda: has_successor(run, row), within_s=STEP_S)
        run.wait_for_more(2, STEP_S)

        os.kill(run.process.pid, signal.SIGCONT)
        run.process.wait(STEP_S)
        code = run.process.poll()
        wait_for_more(run, 2)
        hurry(tmp_path)
        wait_until(lambda: isinstance(run.poll()[-1].event, RunEnded), within_s=STEP_S)

        assert code == EXIT_LEASE_HELD
        assert_replaced(run, was_killed=False)
        assert_exact(tmp_path / "output")


def test_a_driver_with_a_hung_disk_is_replaced_and_ends_itself(
    tmp_path: Path,
) -> None:
    """Its loop waits in the journal, while the process lives and has its slots."""
    elsewhere = {ELSEWHERE: "another machine"}
    with (
        hosted_run(tmp_path, PACED, settings=SOON, environment=elsewhere) as run,
        supervised(run) as row,
    ):
        run.wait_for(lambda _: len(run.completed()) >= NTH, STEP_S)
        (tmp_path / STALL).write_text(str(10 * STEP_S))
        wait_until(lambda: has_successor(run, row), within_s=STEP_S)
        run.process.wait(STEP_S)
        hurry(tmp_path)
        wait_until(lambda: isinstance(run.poll()[-1].event, RunEnded), within_s=STEP_S)

        assert_ended_with_a_sentence(run)
        assert_replaced(run, was_killed=False, had="shown no progress of its control loop")
        assert_exact(tmp_path / "output")


def test_a_stopped_driver_of_this_machine_is_killed_and_replaced(tmp_path: Path) -> None:
    with stopped_run(tmp_path, None, {}) as run, supervised(run) as row:
        wait_until(lambda: has_successor(run, row), within_s=STEP_S)
        hurry(tmp_path)
        wait_until(lambda: isinstance(run.poll()[-1].event, RunEnded), within_s=STEP_S)

        assert run.process.poll() == -signal.SIGKILL
        assert_replaced(run, was_killed=True)
        assert_exact(tmp_path / "output")


@contextmanager
def stopped_run(
    root: Path, point: FaultPoint | None, environment: dict[str, str] | None = None
) -> Iterator[StartedRun]:
    """Runs a driver that is stopped at that point."""
    elsewhere = {ELSEWHERE: "another machine"} if environment is None else environment
    settings = SOON if point is None else {**SOON, "testing.faults": stop_at(point)}
    with hosted_run(root, PACED, settings=settings, environment=elsewhere) as run:
        if point is None:
            run.wait_for(lambda _: len(run.completed()) >= NTH, STEP_S)
            os.kill(run.process.pid, signal.SIGSTOP)
        wait_until_stopped(psutil.Process(run.process.pid), STEP_S)
        yield run


def stop_at(point: FaultPoint) -> str:
    match point:
        case FaultPoint.ACKNOWLEDGED | FaultPoint.PUBLISHED:
            return f"stop {point} nth={NTH}"
        case FaultPoint.RESTARTING:
            return f"kill cutting slot=0 nth={NTH}; stop {point}"
        case _:
            return f"kill cutting slot=0 nth={NTH}; stop {point} attempt=2"


@contextmanager
def supervised(run: StartedRun) -> Iterator[int]:
    """Yields the key of the row that supervision looks after."""
    row = new_run("numbers", run_id=run.directory.run_id, settings=SOON, master="processes")
    try:
        yield row.pk
    finally:
        launcher.kill_driver_tree(row)


def has_successor(run: StartedRun, key: int) -> bool:
    """Runs another round of supervision first."""
    supervision.supervise_run(key)
    return len(run.of(RunStarted)) == 2


def wait_for_more(run: StartedRun, count: int) -> None:
    seen = len(run.completed())
    wait_until(lambda: len(run.completed()) >= seen + count, within_s=STEP_S)


def assert_replaced(
    run: StartedRun, *, was_killed: bool, had: str = "shown no sign of life"
) -> None:
    (replaced,) = [e.event for e in run.of(DriverReplaced)]
    assert isinstance(replaced, DriverReplaced)
    assert replaced.was_killed is was_killed
    assert f"had {had} for" in replaced.reason
    (ended,) = [e.event for e in run.of(RunEnded)]
    assert isinstance(ended, RunEnded)
    assert ended.status is JobStatus.FINISHED
    assert [e.sequence for e in run.envelopes] == list(range(1, len(run.envelopes) + 1))


def assert_ended_with_a_sentence(run: StartedRun) -> None:
    log = run.directory.driver_log.read_text()
    assert run.process.poll() == EXIT_LEASE_HELD, log[-2000:]
    assert log.count("this driver stops.") == 1
    assert f"Stopped: The run {run.directory.run_id} was taken over by process" in log


def everything_in(root: Path) -> dict[str, str]:
    """Returns a digest of every file, except two logs.

    The driver's log says that it ends. Lines that the driver was writing when it was stopped arrive
    late in the log of the run.
    """
    files = [path for path in root.rglob("*") if path.is_file()]
    logs = [path for path in files if path.name == "driver.log" or path.parent.name == "log"]
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in set(files).difference(logs)
    }


def log_of(run: StartedRun) -> list[LogLine]:
    return [line for _, line in newest_lines(run.directory.log, lambda line: True, LINES)]
