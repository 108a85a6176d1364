"""Several checkpoints under way, in real processes: they overlap, and the output stays exact."""

import os
import signal
from pathlib import Path

import pytest

from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    FailureOccurred,
)
from pipelines.domain.failures import CheckpointFailureReason
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.test_killed_processes import LONGER, STEP_S, assert_exact, pid_of

pytestmark = pytest.mark.slow

CONCURRENT = {
    "execution.checkpointing.interval": "10 ms",
    "execution.checkpointing.max-concurrent-checkpoints": "3",
}


def test_checkpoints_overlap_and_a_killed_slot_changes_nothing(tmp_path: Path) -> None:
    with hosted_run(tmp_path, LONGER, settings=CONCURRENT) as run:
        run.wait_for(lambda _: len(run.completed()) >= 5, STEP_S)
        os.kill(pid_of(run, 0), signal.SIGKILL)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert len(run.of(FailureOccurred)) == 1
    assert most_under_way(run) == 3
    assert_exact(tmp_path)


def test_checkpoints_overlap_where_nobody_waits_for_barriers(tmp_path: Path) -> None:
    at_least_once = {**CONCURRENT, "execution.checkpointing.mode": "AT_LEAST_ONCE"}
    with hosted_run(tmp_path, LONGER, settings=at_least_once) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert run.of(FailureOccurred) == []
    assert most_under_way(run) == 3
    assert_exact(tmp_path)


def test_a_killed_driver_leaves_no_id_to_be_used_again(tmp_path: Path) -> None:
    with hosted_run(tmp_path, LONGER, settings=CONCURRENT) as run:
        run.wait_for(lambda _: len(run.completed()) >= 3, STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(10)
        run_id = run.directory.run_id
    with hosted_run(tmp_path, run_id=run_id) as successor:
        successor.wait_until_over(STEP_S)

    ids = [e.event.checkpoint_id for e in successor.of(CheckpointTriggered)]  # type: ignore[attr-defined]
    assert ids == sorted(set(ids))
    assert_exact(tmp_path)


def most_under_way(run: StartedRun) -> int:
    """How many were triggered and had not ended, at the most; subsumed ones had company."""
    under_way: set[int] = set()
    most = 0
    for envelope in run.poll():
        match envelope.event:
            case CheckpointTriggered(checkpoint_id=checkpoint_id):
                under_way.add(checkpoint_id)
                most = max(most, len(under_way))
            case CheckpointCompleted(checkpoint_id=checkpoint_id):
                under_way.discard(checkpoint_id)
            case CheckpointFailed(checkpoint_id=int(checkpoint_id), reason=reason):
                subsumed = CheckpointFailureReason.CHECKPOINT_SUBSUMED
                assert reason is not subsumed or most > 1
                under_way.discard(checkpoint_id)
    return most
