"""Requests in flight in real processes, killed and restored at another parallelism.

Each result comes once, and no window closes before the results of its rows.
"""

import os
import signal
from pathlib import Path

import pytest

from pipelines.domain.status import JobStatus
from tests.processes.event_times import committed
from tests.processes.host import hosted_run

pytestmark = pytest.mark.slow

STEP_S = 60.0
TOTAL = 3_600
SOONER = {"execution.checkpointing.interval": "100 ms"}
UNALIGNED = {**SOONER, "execution.checkpointing.unaligned.enabled": "true"}
ASKING = {"pipeline": "asking"}


@pytest.mark.parametrize(("settings", "ordered"), [(SOONER, "yes"), (UNALIGNED, "no")])
def test_each_result_is_emitted_once_after_a_kill_and_at_another_parallelism(
    tmp_path: Path, settings: dict[str, str], ordered: str
) -> None:
    spec_fields = {"total": str(TOTAL), "ordered": ordered}
    paced = {**spec_fields, "hours_per_s": "0.05"}  # far from its end when it is killed
    with hosted_run(tmp_path, paced, settings=settings, spec_fields=ASKING) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        run.wait_for_more(2, STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
        newest = run.completed()[-1]
    with hosted_run(
        tmp_path,
        spec_fields,
        settings=settings,
        parallelism=3,
        restore_from=newest.path,
        spec_fields={**ASKING, "first_checkpoint_id": newest.checkpoint_id + 1},
    ) as restored:
        assert restored.wait_until_over(STEP_S).status is JobStatus.FINISHED

    answers = committed(tmp_path / "output", "answers")
    assert sorted(answers["number"]) == list(range(TOTAL))
    assert (answers["answer"] == answers["number"] * 3).all()
    minutes = committed(tmp_path / "output", "minutes")
    assert not minutes.duplicated(["window_start", "key"]).any()
    assert minutes["n"].sum() == TOTAL
