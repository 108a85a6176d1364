"""A second driver on a running one's directory changes nothing and says so in its exit status.

The intruder is the program that Spark starts; it gets no further than the lease.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.domain.events import FailureOccurred
from pipelines.domain.status import JobStatus
from pipelines.runtime.master.driving import EXIT_LEASE_HELD
from tests.driven_run import ROOT
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import TOTAL, assert_exact

pytestmark = pytest.mark.slow

STEP_S = 60.0
INTRUDER_S = 200.0
SLOW = {"pause_ms": "2000", "total": str(TOTAL)}  # does not end until it is hurried
OFTEN = {"execution.checkpointing.interval": "50 ms"}


def test_a_second_driver_of_the_same_run_is_turned_away_and_disturbs_nothing(
    tmp_path: Path,
) -> None:
    with hosted_run(tmp_path, SLOW, settings=OFTEN) as run:
        run.wait_for_more(2, STEP_S)
        intruder = second_driver(run.directory.path)
        run.wait_for_more(2, STEP_S)
        hurry(tmp_path)
        ended = run.wait_until_over(STEP_S)

    assert intruder.returncode == EXIT_LEASE_HELD == 3
    assert f"is driven by process {run.process.pid} on " in intruder.stderr
    assert ended.status is JobStatus.FINISHED
    assert run.of(FailureOccurred) == []
    sequences = [envelope.sequence for envelope in run.poll()]
    assert sequences == list(range(1, len(sequences) + 1))
    assert {envelope.attempt for envelope in run.envelopes} <= {0, 1}
    assert sorted(path.name for path in run.directory.attempts.iterdir()) == ["1"]
    assert_exact(tmp_path / "output")


def second_driver(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipelines.spark.driver", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=INTRUDER_S,
        check=False,
    )
