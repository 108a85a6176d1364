"""Barriers reach every subtask, over paths of different length and where hardly anything flows."""

from pathlib import Path

import pandas as pd
import pytest

from pipelines.domain.events import CheckpointFailed, FailureOccurred
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes import diamond
from tests.processes.host import hosted_run
from tests.processes.relay import Balance, balance
from tests.processes.silent import OVER

pytestmark = pytest.mark.slow

STEP_S = 60.0
EXACT = Balance(lost=0, doubled=0)
OFTEN = {"execution.checkpointing.interval": "50 ms"}
UNALIGNED = {**OFTEN, "execution.checkpointing.unaligned.enabled": "true"}
MID_ALIGNMENT = "kill aligning slot=1 nth=11; kill aligning attempt=2 slot=0 nth=7"
WITH_RECORDS_IN_FLIGHT = "kill uploaded slot=1 nth=5; kill uploaded attempt=2 slot=0 nth=6"


@pytest.mark.parametrize(
    ("settings", "faults"), [(OFTEN, MID_ALIGNMENT), (UNALIGNED, WITH_RECORDS_IN_FLIGHT)]
)
def test_every_record_arrives_once_and_in_order_over_each_of_two_paths(
    tmp_path: Path, settings: dict[str, str], faults: str
) -> None:
    plan = {**settings, "testing.faults": faults}
    parameters, spec_fields = {"script": str(tmp_path)}, {"pipeline": "diamond"}
    with hosted_run(tmp_path, parameters, settings=plan, spec_fields=spec_fields) as run:
        run.wait_for(lambda _: len(run.of(FailureOccurred)) == 2, STEP_S)
        (tmp_path / OVER).touch()
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert len(run.of(FailureOccurred)) == 2
    met = diamond.committed(tmp_path / "output")
    pd.testing.assert_frame_equal(met, diamond.expected(2880), check_dtype=False)


@pytest.mark.parametrize("total", [0, 100])
def test_checkpoints_still_commit_while_splits_are_silent_empty_or_ended(
    tmp_path: Path, total: int
) -> None:
    parameters = {"script": str(tmp_path), "total": str(total)}
    settings = {**OFTEN, "execution.checkpointing.timeout": "5 s"}
    silent = {"pipeline": "silent"}
    with hosted_run(
        tmp_path, parameters, settings=settings, parallelism=3, spec_fields=silent
    ) as run:
        run.wait_for(lambda _: after_the_end(run, total) >= 3, STEP_S)
        if total:
            run.wait_for(lambda _: balance(tmp_path / "output", total) == EXACT, STEP_S)
        (tmp_path / OVER).touch()
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert run.of(CheckpointFailed) == []
    assert balance(tmp_path / "output", total) == EXACT


def after_the_end(run: StartedRun, total: int) -> int:
    """Counts the checkpoints completed since one split has ended, while another one continues."""
    return sum(event.source_records == total for event in run.completed())
