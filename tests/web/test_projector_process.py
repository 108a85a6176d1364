"""`manage.py projector` as a process: it follows journals with and without Redis, and ends."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.bus.journal import JournalWriter
from pipelines.domain.events import JobStatusChanged
from pipelines.domain.ids import Attempt, RunId
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import JobStatus
from tests.new_home import new_home
from tests.polling import wait_until
from tests.reserved_ports import reserved_port

ROOT = Path(__file__).parents[2]
PREPARE = """
import django; django.setup()
from tests.web.journals import new_run
new_run()
"""


@pytest.mark.slow
def test_without_redis_the_projector_still_folds_events_and_ends_cleanly(
    tmp_path: Path, nowhere: int
) -> None:
    environment = {
        **os.environ,
        "FTDASH_HOME": str(tmp_path),
        "FTDASH_REDIS_URL": f"redis://127.0.0.1:{nowhere}/0",
        "DJANGO_SETTINGS_MODULE": "ftdash.settings",
    }
    new_home(tmp_path)
    subprocess.run([sys.executable, "-c", PREPARE], cwd=ROOT, env=environment, check=True)
    projector = subprocess.Popen(
        [sys.executable, "manage.py", "projector"], cwd=ROOT, env=environment
    )
    try:
        wait_until(lambda: value(tmp_path, "select count(*) from metrics_heartbeat") == 1)

        write_event(tmp_path)
        wait_until(lambda: value(tmp_path, "select status from jobs_run") == "RUNNING")

        projector.send_signal(signal.SIGTERM)
        assert projector.wait(timeout=60) == 0
    finally:
        projector.kill()
        projector.wait()


@pytest.fixture
def nowhere() -> Iterator[int]:
    with reserved_port() as port:
        yield port


def write_event(home: Path) -> None:
    directory = RunDirectory.of(home / "jobs", "flights", RunId("flights-1"))
    event = JobStatusChanged(status=JobStatus.RUNNING)
    with JournalWriter(directory, RunId("flights-1"), Clock(), lambda *_: None) as journal:
        journal.append(event, Attempt(1))


def value(home: Path, query: str) -> object:
    with sqlite3.connect(home / "ftdash.sqlite3") as database:
        (found,) = database.execute(query).fetchone()
    return found


class Clock:
    def monotonic_ms(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
