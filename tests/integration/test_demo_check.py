"""The demonstration as users and scripts start it: real Spark, real kills, nothing left behind."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftdash.embedded.check import DashboardClient
from ftdash.embedded.demo import Account
from ftdash.embedded.supervisor import LEDGER_NAME, Ledger, living, new_mark, wait_until
from tests.integration.demonstration import ROOT, Demo
from tests.new_home import new_home, without_documentation

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.timeout(600)
def test_the_demonstrations_year_is_exact_to_the_last_row_after_kills(home: Path) -> None:
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


def test_a_signal_ends_every_process_of_a_background_demonstration(home: Path) -> None:
    without_documentation(new_home(home))
    with Demo(home, signal.SIGINT, "--pipeline", "page_views") as demo:
        demo.wait_said(r"End with +Ctrl-C")
        with DashboardClient(demo.said(r"Dashboard +(\S+)")) as dashboard:
            dashboard.sign_in(Account("admin", demo.said(r"admin +password (\S+)")))
        demo.wait_said(r"page_views RUNNING .* checkpoint \d+ completed")
        wait_until(
            lambda: any(home.glob("output/page_views/windows/part-*.jsonl")),
            within_s=60,
            otherwise=lambda: "no window was committed",
        )
        assert len(living(home / LEDGER_NAME)) > 8  # includes the driver, its Java and its slots
        demo.process.send_signal(signal.SIGINT)
        status = demo.process.wait(timeout=60)
        assert status == 0
        assert living(home / LEDGER_NAME) == []


def test_leftover_processes_of_a_demonstration_end_with_its_block(home: Path) -> None:
    """The demonstration only prints its help; its ledger names a process of this test."""
    with Demo(home, signal.SIGUSR1, "--help"):
        ledger = Ledger(home / LEDGER_NAME, new_mark())
        left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        ledger.record(left.pid)
        assert len(living(home / LEDGER_NAME)) == 1

    assert living(home / LEDGER_NAME) == []
    left.communicate()
