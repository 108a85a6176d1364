"""The benchmark of the dashboard asks for every page; times are not judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_page_in_the_url_table_is_requested_while_signed_in() -> None:
    command = [sys.executable, "-m", "bench.dashboard.dashboard", "--checkpoints", "30", "--rounds"]

    done = subprocess.run([*command, "1"], cwd=ROOT, capture_output=True, text=True, check=True)

    found = json.loads(done.stdout.splitlines()[-1])
    assert {
        "fleet",
        "pipeline",
        "checkpoints",
        "checkpoint?against=1",
        "savepoint",
        "game-day",
    } <= set(found["by_page"])
    assert found["p95_ms"] == max(found["by_page"].values())
    assert found["bars"] == {"p95_ms": "at most 200"}
    assert found["not_asked"]["logout"] == "answered 405 to a plain GET"
    assert found["not_asked"]["checkpoints-csv"] == "text/csv, a file to take away"
    assert found["ok"] is (found["p95_ms"] <= 200 and not found["without_values"])
