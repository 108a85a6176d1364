"""Unaligned checkpoints on real Spark: killed and restored at another parallelism, still exact."""

import os
import signal
from pathlib import Path

import pytest

from pipelines.domain.events import FailureOccurred, SubtaskAcknowledged
from pipelines.domain.status import JobStatus
from tests.driven_run import started_run
from tests.flight_runs import (
    PACED,
    SOONER,
    STEP_S,
    assert_output_is_exact,
    parameters_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.spark]

UNALIGNED = {**SOONER, "execution.checkpointing.unaligned.enabled": "true"}


def test_kills_and_a_restore_at_another_parallelism_change_nothing(
    flights: Path,
    tmp_path: Path,
) -> None:
    paced = parameters_for(flights, tmp_path, speed=PACED)
    with started_run(tmp_path, "flight_delays", paced, settings=UNALIGNED) as run:
        run.wait_for_more(2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        run.wait_for_more(2, STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
        acknowledged = [envelope.event for envelope in run.of(SubtaskAcknowledged)]
        newest = run.completed()[-1].path
        assert len(run.of(FailureOccurred)) == 1
    phases = [e.phases for e in acknowledged if isinstance(e, SubtaskAcknowledged)]
    assert any(phase.is_unaligned for phase in phases)

    unpaced = parameters_for(flights, tmp_path, speed="max")
    with started_run(
        tmp_path,
        "flight_delays",
        unpaced,
        settings=UNALIGNED,
        parallelism=3,
        restore_from=newest,
    ) as restored:
        ended = restored.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED
    assert_output_is_exact(flights, tmp_path)
