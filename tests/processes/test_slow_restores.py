"""A restore may take as long as it needs: it shows progress, and ends only if it stands still."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pipelines.domain.events import FailureOccurred, MetricsSampled, RestoreProgress, SlotConnected
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.held_restores import LET_GO, OPENING
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_exact
from tests.stopped_processes import pids_of, wait_until_gone

pytestmark = pytest.mark.slow

STEP_S = 60.0
TIMEOUT_MS = 1_000
FOR_EVER = "1 h"
SETTINGS = {
    "execution.checkpointing.interval": "50 ms",
    "heartbeat.interval": "100 ms",
    "heartbeat.timeout": f"{TIMEOUT_MS} ms",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
}
HELD = {"pipeline": "numbers_held"}
PACED = {"pause_ms": "150"}


def test_a_restore_that_takes_longer_than_the_heartbeat_timeout_succeeds(tmp_path: Path) -> None:
    with held_restore(tmp_path, SETTINGS) as run:
        began_ms = run.of(SlotConnected)[-1].at_ms
        run.wait_for(lambda es: es[-1].at_ms > began_ms + 4 * TIMEOUT_MS, STEP_S)
        shown = restoring(run)
        (tmp_path / LET_GO).touch()
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert {e.attempt for e in run.of(SlotConnected)} == {1, 2}
    assert shown
    assert min(min(progress.total_files, progress.total_bytes) for progress in shown) > 0
    assert_exact(tmp_path / "output")


def test_restoring_slots_end_when_their_driver_is_killed(tmp_path: Path) -> None:
    settings = {**SETTINGS, "heartbeat.timeout": FOR_EVER}
    with held_restore(tmp_path, settings) as run:
        slots = [psutil.Process(pid) for pid in pids_of(run, attempt=2).values()]
        os.kill(run.process.pid, signal.SIGKILL)
        for slot in slots:
            wait_until_gone(slot, STEP_S)

    assert len(slots) == 2


def test_a_slot_stopped_during_its_restore_is_given_up(tmp_path: Path) -> None:
    with held_restore(tmp_path, SETTINGS) as run:
        stopped = psutil.Process(pids_of(run, attempt=2)[1])
        stopped.suspend()
        (tmp_path / LET_GO).touch()
        run.wait_for(lambda _: 3 in {e.attempt for e in run.of(SlotConnected)}, STEP_S)
        stopped.resume()
        wait_until_gone(stopped, STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert "silent for longer than heartbeat.timeout" in failures(run)[-1]
    assert_exact(tmp_path / "output")


def test_a_stalled_restore_is_ended_with_its_progress(tmp_path: Path) -> None:
    settings = {**SETTINGS, "execution.state-recovery.standstill-timeout": "500 ms"}
    with held_restore(tmp_path, settings) as run:
        run.wait_for(lambda _: 3 in {e.attempt for e in run.of(SlotConnected)}, STEP_S)
        (tmp_path / LET_GO).touch()
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert "The restore stood still at 0 of " in failures(run)[1]
    assert "execution.state-recovery.standstill-timeout" in failures(run)[1]
    assert_exact(tmp_path / "output")


@contextmanager
def held_restore(root: Path, settings: dict[str, str]) -> Iterator[StartedRun]:
    """Yields a run whose second attempt restores a state, and does not finish."""
    with hosted_run(root, given(root), settings=settings, spec_fields={**HELD}) as run:
        run.wait_for(lambda _: any(point.state_bytes for point in run.completed()), STEP_S)
        os.kill(run.pid_of(0), signal.SIGKILL)
        run.wait_for(lambda _: are_opening(root, attempt=2), STEP_S)
        run.wait_for(lambda _: len(pids_of(run, attempt=2)) == 2, STEP_S)
        yield run


def given(root: Path) -> dict[str, str]:
    return {**PACED, "output": str(root / "output"), "hurry": str(root / "hurry")}


def are_opening(root: Path, attempt: int) -> bool:
    return all((root / OPENING.format(attempt=attempt, subtask=n)).exists() for n in (0, 1))


def restoring(run: StartedRun) -> list[RestoreProgress]:
    samples = [e.event for e in run.of(MetricsSampled) if isinstance(e.event, MetricsSampled)]
    return [s.restoring for s in samples if s.restoring and not s.restoring.is_verifying]


def failures(run: StartedRun) -> list[str]:
    return [e.event.cause for e in run.of(FailureOccurred)]  # type: ignore[attr-defined]
