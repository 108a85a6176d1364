"""Two installations run one pipeline: the newer run takes the output over, the older one ends."""

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pipelines.domain.events import FailureOccurred, RunEnded, TargetTakenOver
from pipelines.domain.ids import RunId
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_rows_exact, committed

pytestmark = pytest.mark.slow

STEP_S = 60.0
SOON = {"execution.checkpointing.interval": "50 ms"}
OLDER, NEWER = RunId("run-older"), RunId("run-newer")


def test_a_run_that_loses_its_output_to_a_newer_run_ends_and_is_not_restarted(
    tmp_path: Path,
) -> None:
    with started(tmp_path, OLDER) as older:
        older.wait_for(lambda _: len(older.completed()) >= 3, STEP_S)
        with started(tmp_path, NEWER) as newer:
            ended = older.wait_until_over(STEP_S)
            newer.wait_for_more(1, STEP_S)  # it has set aside the output of the older one
            rows_then = len(committed(tmp_path / "output"))
            newer.wait_for_more(2, STEP_S)
            rows_later = len(committed(tmp_path / "output"))
            hurry(tmp_path)
            assert newer.wait_until_over(STEP_S).status is JobStatus.FINISHED

    assert_lost(ended)
    assert {envelope.attempt for envelope in older.envelopes} <= {0, 1}, "it was restarted"
    assert rows_then <= rows_later
    assert_rows_exact(tmp_path / "output")
    (taken_over,) = [envelope.event for envelope in newer.of(TargetTakenOver)]
    assert isinstance(taken_over, TargetTakenOver)
    assert (taken_over.from_run, taken_over.from_installation) == (OLDER, f"home of {OLDER}")


def test_a_driver_that_resumes_a_run_does_not_take_its_output_back(tmp_path: Path) -> None:
    """Its predecessor was killed, and an operator started the pipeline elsewhere meanwhile."""
    with started(tmp_path, OLDER) as older:
        older.wait_for(lambda _: len(older.completed()) >= 3, STEP_S)
        os.kill(older.process.pid, signal.SIGKILL)
    with started(tmp_path, NEWER) as newer:
        newer.wait_for_more(2, STEP_S)

        with started(tmp_path, OLDER) as again:
            ended = again.wait_until_over(STEP_S)
        hurry(tmp_path)
        assert newer.wait_until_over(STEP_S).status is JobStatus.FINISHED

    assert_lost(ended)
    assert not newer.of(FailureOccurred), "the resumed run disturbed the newer one"
    assert_rows_exact(tmp_path / "output")


def assert_lost(ended: RunEnded) -> None:
    assert ended.status is JobStatus.FAILED
    assert f"un {NEWER} of installation home of {NEWER}, started by ada, has taken" in ended.reason
    assert ended.reason.count(". ") == 0, "one sentence"


def started(root: Path, run_id: RunId) -> AbstractContextManager[StartedRun]:
    """Starts the run in an installation of its own."""
    places = {"pause_ms": "50", "output": str(root / "output"), "hurry": str(root / "hurry")}
    spec_fields: dict[str, object] = {"installation": f"home of {run_id}", "started_by": "ada"}
    home = root / f"home of {run_id}"
    return hosted_run(home, places, settings=SOON, run_id=run_id, spec_fields=spec_fields)
