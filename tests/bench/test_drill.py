"""The drill, with the pages in a real browser: two of its incidents. Times are not judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHOSEN = ("function-throws", "web-server-killed")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_fleet_page_names_each_incident_and_its_next_step() -> None:
    command = [sys.executable, "manage.py", "drill", "--json", "--without-spark"]
    only = [word for name in CHOSEN for word in ("--only", name)]

    done = subprocess.run([*command, *only], cwd=ROOT, capture_output=True, text=True, check=True)

    found = json.loads(done.stdout.splitlines()[-1])
    assert found["incidents"] == len(CHOSEN)
    for name in CHOSEN:
        incident = found["by_incident"][name]
        assert incident["is_sentence_right"], incident
        assert incident["is_action_right"], incident
        assert incident["seconds"] > 0
    assert [found["by_incident"][name]["clicks"] for name in CHOSEN] == [2, 0]
    assert found["clicks_max"] == 2
