"""The benchmark of watched queries, with next to nothing to do; times are not judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_reports_the_page_and_the_doctor_are_measured() -> None:
    command = [sys.executable, "-m", "bench.dashboard.watch", "--queries", "2", "--batches", "30"]

    done = subprocess.run(
        [*command, "--rounds", "1", "--groups", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    found = json.loads(done.stdout.splitlines()[-1])
    assert found["events_per_s"] > 0
    assert found["events_per_cpu_s"] > 0
    assert found["p95_ms"] > 0
    assert found["doctor_s"] >= 0
    assert found["listener_share"] is None
    assert found["bars"]["events_per_s"] == "at least 2000"
