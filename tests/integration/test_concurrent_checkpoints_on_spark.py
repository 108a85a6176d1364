"""Concurrent checkpoints on real Spark, with a slot killed among them: the output is exact."""

import os
import signal
from pathlib import Path

import pytest

from pipelines.domain.events import FailureOccurred
from pipelines.domain.status import JobStatus
from tests.concurrent_checkpoints import CONCURRENT, most_under_way
from tests.driven_run import started_run
from tests.flight_runs import (
    PACED,
    STEP_S,
    assert_output_is_exact,
    parameters_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def test_checkpoints_overlap_and_a_killed_slot_changes_nothing(
    flights: Path, tmp_path: Path
) -> None:
    parameters = parameters_for(flights, tmp_path, speed=PACED)

    with started_run(tmp_path, "flight_delays", parameters, settings=CONCURRENT) as run:
        run.wait_for_more(3, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert len(run.of(FailureOccurred)) == 1
    assert most_under_way(run) == 3
    assert_output_is_exact(flights, tmp_path)
