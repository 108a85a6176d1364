"""State and timers of process functions live through kill -9, on every backend."""

import os
import signal
from pathlib import Path

import pandas as pd
import pytest

from pipelines.domain.status import JobStatus
from tests.processes.host import hosted_run
from tests.processes.numbers import KEYS
from tests.processes.test_killed_processes import pid_of
from tests.processes.timed import committed_totals, expected_totals, reminded_keys

pytestmark = pytest.mark.slow

STEP_S = 20.0
TOTAL = 900


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_what_functions_remember_and_their_timers_survive_killed_slots(
    tmp_path: Path, backend: str
) -> None:
    settings = {"execution.checkpointing.interval": "50 ms", "state.backend.type": backend}
    asked = {"pipeline": "timed"}
    with hosted_run(tmp_path, settings=settings, asked=asked) as run:
        for slot in (1, 0):
            known = len(run.completed())
            run.wait_for(lambda _, known=known: len(run.completed()) > known, STEP_S)
            os.kill(pid_of(run, slot), signal.SIGKILL)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    totals = committed_totals(tmp_path / "output")
    pd.testing.assert_frame_equal(totals, expected_totals(TOTAL), check_dtype=False)
    assert reminded_keys(tmp_path / "output") == list(range(KEYS))
