"""A second driver on the directory of a running one changes nothing and says so by its status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftdash.embedded.java import environment as java_environment
from pipelines.domain.events import FailureOccurred
from pipelines.spark.driver import EXIT_LEASE_HELD
from tests.driven_run import ROOT, StartedRun, started_run

pytestmark = [pytest.mark.slow, pytest.mark.spark]

STEP_S = 150.0  # the first step includes the start of Spark, on a busy machine
INTRUDER_S = 60.0
SOONER = {"execution.checkpointing.interval": "200 ms"}


def test_a_second_driver_of_the_same_run_is_turned_away_and_disturbs_nothing(
    tmp_path: Path,
) -> None:
    parameters = {"data": str(events_in(tmp_path)), "repeat": "100000000"}

    with started_run(tmp_path, "page_view_count", parameters, settings=SOONER) as run:
        wait_for_checkpoints(run, 2)
        intruder = second_driver(run.directory.path)
        wait_for_checkpoints(run, 2)
        still_runs = run.process.poll() is None

    assert intruder.returncode == EXIT_LEASE_HELD == 3
    assert f"is driven by process {run.process.pid} on " in intruder.stderr
    assert still_runs
    assert run.of(FailureOccurred) == []
    sequences = [envelope.sequence for envelope in run.poll()]
    assert sequences == list(range(1, len(sequences) + 1))
    assert {envelope.attempt for envelope in run.envelopes} <= {0, 1}
    assert sorted(path.name for path in run.directory.attempts.iterdir()) == ["1"]


def events_in(root: Path) -> Path:
    directory = root / "events"
    directory.mkdir()
    lines = [f"{number % 7},{number % 13},{number}" for number in range(1_000)]
    (directory / "events.csv").write_text("\n".join([*lines, ""]))
    return directory


def wait_for_checkpoints(run: StartedRun, count: int) -> None:
    seen = len(run.completed())
    run.wait_for(lambda _: len(run.completed()) >= seen + count, STEP_S)


def second_driver(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipelines.spark.driver", str(directory)],
        cwd=ROOT,
        env={**os.environ, **java_environment()},
        capture_output=True,
        text=True,
        timeout=INTRUDER_S,
        check=False,
    )
