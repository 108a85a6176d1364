"""Two installations write to one directory: the run that an operator starts later keeps it."""

import os
import signal
from pathlib import Path

import pytest

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.events import JobStatusChanged, SlotConnected, TargetTakenOver
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import HELD_AT, assert_exact

pytestmark = pytest.mark.slow

STEP_S = 60.0
OFTEN = {
    "execution.checkpointing.interval": "50 ms",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
}

RARELY = {**OFTEN, "execution.checkpointing.interval": "1 h"}
"""No writer checks the owner of the directory, so only the restart can find out."""


def test_a_run_that_loses_its_target_to_another_installation_ends_for_good(
    tmp_path: Path,
) -> None:
    output = tmp_path / "output"
    given = {"held_at": str(HELD_AT), "output": str(output)}
    ours: dict[str, object] = {"installation": "one", "started_by": "ann"}
    theirs: dict[str, object] = {"installation": "two", "started_by": "bob"}
    with hosted_run(tmp_path / "one", given, settings=RARELY, spec_fields=ours) as first:
        first.wait_for(lambda _: JobStatus.RUNNING in statuses_of(first), STEP_S)
        with hosted_run(tmp_path / "two", given, settings=OFTEN, spec_fields=theirs) as second:
            second.wait_until_cut_at(HELD_AT, STEP_S)
            os.kill(first.pid_of(1), signal.SIGKILL)
            lost = first.wait_until_over(STEP_S)
            hurry(tmp_path / "two")
            ended = second.wait_until_over(STEP_S)

    assert lost.status is JobStatus.FAILED
    by = f"Run {second.directory.run_id} of installation two, started by bob, has taken over"
    assert by in lost.reason
    assert lost.reason.count(". ") <= 1
    assert {envelope.attempt for envelope in first.of(SlotConnected)} == {1}, "no restart"
    [taken] = [e.event for e in second.of(TargetTakenOver)]
    assert (taken.from_run, taken.from_installation) == (first.directory.run_id, "one")  # type: ignore[attr-defined]
    assert ended.status is JobStatus.FINISHED, ended.reason
    assert_exact(output)
    holder = ExactlyOnceFiles(output, pipeline="numbers").holder()
    assert holder is not None
    assert holder.run_id == second.directory.run_id


def statuses_of(run: StartedRun) -> list[JobStatus]:
    return [e.event.status for e in run.of(JobStatusChanged)]  # type: ignore[attr-defined]
