"""The control plane's database fails while a job runs: the job continues, rows are right again.

A PostgreSQL server is killed; a SQLite file is taken away, or another process locks it.
"""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftdash.embedded.installation import free_port
from pipelines.domain.ids import RunId
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.new_home import new_home
from tests.polling import wait_until
from tests.postgres_server import PostgresServer, postgres_server
from tests.processes.host import hosted_run, hurry
from tests.processes.numbers import assert_exact

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STEP_S = 60.0
TOTAL = 30_000
PACED = {"pause_ms": "200", "total": str(TOTAL)}  # half a minute
SOONER = {"execution.checkpointing.interval": "50 ms"}
RUN = RunId("run-1")
PREPARE = """
import django; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from tests.web.journals import new_run
new_run("numbers", run_id="run-1")
"""
COMPLETED = "select count(*) from checkpoints_checkpoint where completed_at is not null"
STATUS = "select status from jobs_run"

Query = Callable[[str], object]


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def test_a_run_continues_while_postgresql_is_killed_and_restarted(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    def value(query: str) -> object:
        return postgres.rows(query)[0][0]

    with projected_run(tmp_path, {"FTDASH_DATABASE_URL": postgres.url}) as run:
        wait_until(lambda: int(str(value(COMPLETED))) >= 2)
        postgres.kill()
        assert_goes_on(run)
        postgres.start()
        assert_rows_are_right(run, tmp_path, value)


@pytest.mark.parametrize("trouble", ["removed", "locked"])
def test_a_run_continues_while_the_sqlite_file_is_out_of_reach(
    tmp_path: Path, trouble: str
) -> None:
    def value(query: str) -> object:
        with sqlite3.connect(tmp_path / "ftdash.sqlite3") as database:
            return database.execute(query).fetchone()[0]

    with projected_run(tmp_path, {}) as run:
        wait_until(lambda: int(str(value(COMPLETED))) >= 2)
        with removed(tmp_path) if trouble == "removed" else locked(tmp_path):
            assert_goes_on(run)
        assert_rows_are_right(run, tmp_path, value)


@contextmanager
def removed(home: Path) -> Iterator[None]:
    aside = home / "aside"
    aside.mkdir()
    for file in home.glob("ftdash.sqlite3*"):
        file.rename(aside / file.name)
    yield
    for file in home.glob("ftdash.sqlite3*"):
        file.unlink()  # an empty one, made by the process that looked for it
    for file in aside.iterdir():
        file.rename(home / file.name)


@contextmanager
def locked(home: Path) -> Iterator[None]:
    database = sqlite3.connect(home / "ftdash.sqlite3", isolation_level=None)
    database.execute("begin exclusive")
    yield
    database.execute("rollback")
    database.close()


@contextmanager
def projected_run(home: Path, variables: dict[str, str]) -> Iterator[StartedRun]:
    """Starts a run in the home of an installation, and a projector that follows it."""
    environment = {
        **os.environ,
        "FTDASH_HOME": str(home),
        "FTDASH_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0",
        "DJANGO_SETTINGS_MODULE": "ftdash.settings",
        **variables,
    }
    if "FTDASH_DATABASE_URL" not in variables:
        new_home(home)
    subprocess.run([sys.executable, "-c", PREPARE], cwd=ROOT, env=environment, check=True)
    projector = subprocess.Popen(
        [sys.executable, "manage.py", "projector"], cwd=ROOT, env=environment
    )
    try:
        with hosted_run(home / "jobs", PACED, settings=SOONER, run_id=RUN) as run:
            yield run
        assert projector.poll() is None, "the projector is still the same process"
    finally:
        projector.kill()
        projector.wait()


def assert_goes_on(run: StartedRun) -> None:
    run.wait_for_more(10, STEP_S)


def assert_rows_are_right(run: StartedRun, home: Path, value: Query) -> None:
    hurry(home / "jobs")
    ended = run.wait_until_over(STEP_S)
    wait_until(lambda: value(STATUS) == "FINISHED")
    assert ended.status is JobStatus.FINISHED
    assert value(COMPLETED) == len(run.completed())
    assert_exact(home / "jobs" / "output", TOTAL)
