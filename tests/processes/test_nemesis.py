"""Kills without end, then quiet: the run recovers within the grace period, and nothing is left.

`--nemesis-seconds 120` lasts as long as real trouble may: a kill every 2 to 6 s.
"""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipelines.bus.journal import read_journal
from pipelines.domain.events import FailureOccurred, JobStatusChanged, SlotConnected
from pipelines.domain.ids import RunId
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_exact

pytestmark = pytest.mark.slow

STEP_S = 60.0
GRACE_S = 60.0  # from the last kill to RUNNING
KILLS = 12  # at least; 30 in two minutes
TOTAL = 20_000
PACED = {"pause_ms": "100", "total": str(TOTAL)}  # a replay repeats some numbers
SETTINGS = {
    "execution.checkpointing.interval": "50 ms",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
    "restart-strategy.exponential-delay.max-backoff": "20 ms",
}


@pytest.mark.parametrize("seed", [1])
def test_a_run_recovers_from_random_slot_kills_and_leaves_nothing_behind(
    tmp_path: Path, seed: int, nemesis_s: float
) -> None:
    """Most kills hit an attempt that has made progress; the others may hit its restore."""
    rng = random.Random(seed)
    kills = max(KILLS, round(nemesis_s / 4))
    slower = PACED | {"pause_ms": str(round(nemesis_s * 40))}
    with hosted_run(tmp_path, slower, settings=SETTINGS) as run:
        for _ in range(kills):
            if rng.random() < 0.75:
                run.wait_for_more(2, STEP_S)
            time.sleep(rng.uniform(0.5, 1.5) * nemesis_s / kills)
            kill(newest_pid(run, rng.randrange(2)))
        run.wait_for(lambda _: is_running(run), GRACE_S)
        failures, progress = len(run.of(FailureOccurred)), run.completed()[-1].source_records
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert failures >= kills / 2, "the kills hit something"
    assert 0 < progress < TOTAL, "in the middle of the work"
    assert ended.status is JobStatus.FINISHED, ended.reason
    assert_exact(tmp_path / "output", TOTAL)
    assert_nothing_is_open(run)


@pytest.mark.parametrize("seed", [1])
def test_a_run_survives_the_kill_of_all_processes_at_once_five_times(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    run_id = RunId("run-1")
    for attempt in range(1, 6):
        with hosted_run(tmp_path, PACED, settings=SETTINGS, run_id=run_id) as run:
            seen = len(run.completed()) + rng.randrange(4)
            run.wait_for(lambda _, n=attempt: connected_in(run, n) == 2, STEP_S)
            run.wait_for(lambda _, n=seen: len(run.completed()) >= n, STEP_S)
            time.sleep(rng.uniform(0, 0.05))
            kill(run.process.pid)
            for slot in range(2):
                kill(newest_pid(run, slot))
            run.process.wait(STEP_S)
    with hosted_run(tmp_path, PACED, settings=SETTINGS, run_id=run_id) as run:
        run.wait_for(lambda _: is_running(run), GRACE_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, ended.reason
    assert run.of(SlotConnected)[-1].attempt == 6
    assert_exact(tmp_path / "output", TOTAL)
    assert_nothing_is_open(run)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def newest_pid(run: StartedRun, slot: int) -> int:
    run.wait_for(lambda _: any(e.event.slot == slot for e in run.of(SlotConnected)), STEP_S)  # type: ignore[attr-defined]
    return run.pid_of(slot)


def is_running(run: StartedRun) -> bool:
    """Looks at the status of this driver, not of the one before it."""
    changes = [e.event for e in run.of(JobStatusChanged)]
    newest = changes[-1] if changes else None
    return isinstance(newest, JobStatusChanged) and newest.status is JobStatus.RUNNING


def connected_in(run: StartedRun, attempt: int) -> int:
    return sum(e.attempt == attempt for e in run.of(SlotConnected))


def assert_nothing_is_open(run: StartedRun) -> None:
    """Asserts that no process, unretained point, partial file or torn journal line is left."""
    pids = {e.event.pid for e in run.of(SlotConnected)}  # type: ignore[attr-defined]
    assert not any(is_alive(pid) for pid in pids)
    points = run.directory.path / "checkpoints"
    assert [path for path in points.rglob("*") if path.is_file()] == []
    envelopes, offset = read_journal(run.directory.journal_file, 0)
    assert [e.sequence for e in envelopes] == list(range(1, len(envelopes) + 1))
    assert offset == run.directory.journal_file.stat().st_size


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
