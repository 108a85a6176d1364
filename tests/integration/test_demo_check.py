"""The demonstration as people and scripts start it: real Spark, real kills, nothing left."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftdash.embedded.accounts import Account
from ftdash.embedded.dashboard_client import DashboardClient
from ftdash.embedded.ledger import end_all, living
from ftdash.embedded.opening import LEDGER_NAME
from ftdash.embedded.supervisor import wait_until

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.timeout(600)
def test_the_year_is_right_to_the_last_row_whatever_was_killed(home: Path) -> None:
    command = [sys.executable, "manage.py", "demo", "--check", "--json", "--home", str(home)]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)

    answer = json.loads(ran.stdout.splitlines()[-1])
    assert answer["verdict"] == "exact", ran.stderr
    assert ran.returncode == 0
    assert answer["rows_expected"] > 50_000
    assert (answer["missing"], answer["duplicated"], answer["different"]) == (0, 0, 0)
    assert (answer["slots_killed"], answer["drivers_killed"], answer["restores"]) == (2, 1, 1)
    assert len(answer["recovery_ms"]) >= 2
    assert list(Path(answer["files_output"]).glob("part-*.parquet"))
    assert living(home / LEDGER_NAME) == []


def test_a_demonstration_in_the_background_ends_everything_when_asked(home: Path) -> None:
    demo = Demo(home, ignored=signal.SIGINT)

    demo.wait_said(r"End with +Ctrl-C")
    with DashboardClient(demo.said(r"Dashboard +(\S+)")) as dashboard:
        dashboard.sign_in(Account("admin", demo.said(r"admin +password (\S+)")))
    demo.wait_said(r"flight_delays RUNNING .* checkpoint \d+ completed")
    assert len(living(home / LEDGER_NAME)) > 8  # also the driver, its Java and its slots
    demo.process.send_signal(signal.SIGINT)

    assert demo.process.wait(timeout=60) == 0
    assert living(home / LEDGER_NAME) == []


class Demo:
    """A demonstration of its own process group, whose words go to a file."""

    def __init__(self, home: Path, ignored: signal.Signals) -> None:
        self._words = home.with_suffix(".txt")
        before = signal.signal(ignored, signal.SIG_IGN)
        try:
            with self._words.open("wb") as words:
                self.process = subprocess.Popen(
                    [sys.executable, "manage.py", "demo", "--home", str(home), "--port", "0"],
                    cwd=ROOT,
                    stdout=words,
                    stderr=subprocess.STDOUT,
                )
        finally:
            signal.signal(ignored, before)

    def wait_said(self, pattern: str) -> None:
        wait_until(
            lambda: self._has_said(pattern),
            within_s=120,
            otherwise=lambda: f"{pattern} was not said:\n{self._words.read_text()}",
        )

    def said(self, pattern: str) -> str:
        found = re.search(pattern, self._words.read_text())
        assert found, pattern
        return found.group(1)

    def _has_said(self, pattern: str) -> bool:
        assert self.process.poll() is None, self._words.read_text()
        return re.search(pattern, self._words.read_text()) is not None


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    yield home
    if (home / LEDGER_NAME).is_file():
        end_all(home / LEDGER_NAME)
