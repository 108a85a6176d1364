"""Several checkpoints at once, in real processes: they overlap, and the output stays exact."""

import os
import signal
from pathlib import Path

import pytest

from pipelines.domain.events import (
    CheckpointTriggered,
    FailureOccurred,
)
from pipelines.domain.status import JobStatus
from tests.concurrent_checkpoints import CONCURRENT, most_under_way
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_exact

pytestmark = pytest.mark.slow

STEP_S = 60.0
LONGER = {"pause_ms": "150"}  # 5 s; no test waits for the end


def test_checkpoints_overlap_and_a_killed_slot_changes_nothing(tmp_path: Path) -> None:
    with hosted_run(tmp_path, LONGER, settings=CONCURRENT) as run:
        run.wait_for(lambda _: len(run.completed()) >= 5, STEP_S)
        os.kill(run.pid_of(0), signal.SIGKILL)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert len(run.of(FailureOccurred)) == 1
    assert most_under_way(run) == 3
    assert_exact(tmp_path / "output")


def test_at_least_once_checkpoints_also_overlap(tmp_path: Path) -> None:
    at_least_once = {**CONCURRENT, "execution.checkpointing.mode": "AT_LEAST_ONCE"}
    with hosted_run(tmp_path, LONGER, settings=at_least_once) as run:
        run.wait_for(lambda _: most_under_way(run) == 3, STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert run.of(FailureOccurred) == []
    assert most_under_way(run) == 3
    assert_exact(tmp_path / "output")


def test_a_successor_never_reuses_a_checkpoint_id_of_a_killed_driver(tmp_path: Path) -> None:
    with hosted_run(tmp_path, LONGER, settings=CONCURRENT) as run:
        run.wait_for(lambda _: len(run.completed()) >= 3, STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
        run_id = run.directory.run_id
    with hosted_run(tmp_path, run_id=run_id) as successor:
        hurry(tmp_path)
        successor.wait_until_over(STEP_S)

    ids = [e.event.checkpoint_id for e in successor.of(CheckpointTriggered)]  # type: ignore[attr-defined]
    assert ids == sorted(set(ids))
    assert_exact(tmp_path / "output")
