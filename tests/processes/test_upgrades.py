"""Upgrades of a pipeline whose package is shipped: the output is exact over one that succeeds and
one that goes back, with the worker or a driver killed in between.

The command, the worker's rounds, the check, drivers and slots are processes of their own, as in an
installation; only the broker and Spark are missing.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.domain.status import JobStatus
from tests.new_home import new_home
from tests.polling import wait_until
from tests.processes.numbers import assert_rows_exact
from tests.shipped_packages import shop_wheel

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STEP_S = 120.0
FLOW = """
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.stream import Environment, count, flow, sum, tumbling
from tests.processes.numbers import SCHEMA, TOTAL, Numbers

from dataclasses import dataclass

HELD_AT, PAUSE_S, FAILS_AT, WRONG_BY = VALUES


@dataclass(frozen=True, kw_only=True)
class Parameters:
    output: Path
    hurry: Path


@flow
def shop(env: Environment, parameters: Parameters) -> None:
    def digest(batch):
        if FAILS_AT and pc.any(pc.greater_equal(batch.column("number"), FAILS_AT)).as_py():
            raise ValueError(f"{FAILS_AT} is too much")
        return batch

    hurry = "" if FAILS_AT else str(parameters.hurry)
    source = Numbers(TOTAL, pause_s=PAUSE_S, hurry=hurry, held_at=HELD_AT)
    digested = env.source(source, uid="numbers").map_batches(digest, SCHEMA, uid="digest")
    totals = (
        digested.key_by("key")
        .window(tumbling(minutes=1))
        .aggregate(count=count(), total=sum("number"), uid="totals")
    )

    def spoil(batch):
        wrong = pc.add(batch.column("total"), WRONG_BY)
        return batch.set_column(batch.schema.get_field_index("total"), "total", wrong)

    spoilt = totals.map_batches(spoil, totals.schema, uid="weigh")
    spoilt.sink(ExactlyOnceFiles(parameters.output, pipeline="numbers"), uid="files")
"""
GOOD = "5_400, 0.02, 0, 0"
BAD = "7_100, 0.3, 6_600, 1"
"""It commits wrong rows for a while, and then fails at every attempt."""

SOON = {
    "execution.checkpointing.interval": "100 ms",
    "restart-strategy.type": "none",
}
HARD = {**SOON, "pipeline.upgrade.checkpoints": "1000"}


class Installation:
    """The commands of an installation in `home`, and one worker at a time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.worker: subprocess.Popen[bytes] | None = None
        self._environment = {
            **os.environ,
            "FTDASH_HOME": str(home),
            "DJANGO_SETTINGS_MODULE": "tests.processes.upgrade_settings",
        }

    def manage(self, *words: str) -> str:
        told = subprocess.run(
            [sys.executable, "-m", "ftdash", *words],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=STEP_S,
        )
        assert told.returncode == 0, told.stderr
        return told.stdout

    def start_worker(self) -> None:
        with (self.home / "worker.log").open("ab") as log:
            self.worker = subprocess.Popen(
                [sys.executable, "-m", "tests.processes.upgrade_worker"],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill_worker(self) -> None:
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.home / "ftdash.sqlite3", timeout=STEP_S) as database:
            return database.execute(query).fetchall()

    def statuses(self) -> list[str]:
        return [status for (status,) in self.rows("SELECT status FROM jobs_run ORDER BY number")]

    def step(self) -> str:
        return str(self.rows("SELECT step FROM jobs_upgrade")[0][0])

    def completed(self, number: int) -> int:
        """Checkpoints of that run."""
        query = (
            "SELECT count(*) FROM checkpoints_checkpoint c JOIN jobs_run r ON r.id = c.run_id"
            f" WHERE r.number = {number} AND c.completed_at IS NOT NULL"
        )
        return int(self.rows(query)[0][0])

    def wait_for(self, holds: Any) -> None:
        wait_until(lambda: bool(holds()), within_s=STEP_S, otherwise=self.story)

    def story(self) -> str:
        log = (self.home / "worker.log").read_text()[-3000:]
        return f"not yet: {self.statuses()} {self.rows('SELECT * FROM jobs_upgrade')} {log}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(new_home(tmp_path / "home"))
    installation.start_worker()
    yield installation
    installation.kill_worker()
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get("FTDASH_HOME") == str(installation.home)
            if is_ours:
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


@pytest.mark.parametrize("killed", ["worker", "driver"])
def test_the_output_is_exact_over_an_upgrade(
    site: Installation, tmp_path: Path, killed: str
) -> None:
    started(site, tmp_path, SOON | {"restart-strategy.type": "exponential-delay"})

    upgrade(site, package(tmp_path, "1.1", GOOD))
    if killed == "worker":
        site.wait_for(lambda: site.step() == "STOPPING")
        site.kill_worker()
        site.start_worker()
    if killed == "driver":
        kill_driver(site, 1)
    site.wait_for(lambda: site.step() == "ENDED")
    (tmp_path / "hurry").touch()
    site.wait_for(lambda: site.statuses()[-1] == JobStatus.FINISHED)

    assert outcome(site)[0] == "SUCCEEDED", outcome(site)
    assert versions(site) == ["1.0", "1.1"]
    assert_rows_exact(tmp_path / "output")


@pytest.mark.parametrize("killed", ["worker", "driver"])
def test_the_output_is_exact_over_an_upgrade_that_goes_back(
    site: Installation, tmp_path: Path, killed: str
) -> None:
    started(site, tmp_path, HARD)

    upgrade(site, package(tmp_path, "2.0", BAD))
    site.wait_for(lambda: site.step() == "WATCHING")
    if killed == "worker":
        site.kill_worker()
        site.start_worker()
    if killed == "driver":
        kill_driver(site, 2)
    site.wait_for(lambda: site.step() == "ENDED")
    (tmp_path / "hurry").touch()
    site.wait_for(lambda: site.statuses()[-1] == JobStatus.FINISHED)

    phase, message = outcome(site)
    assert phase == "FAILED"
    assert message.startswith("It went back: the code before goes on from ")
    assert versions(site) == ["1.0", "2.0", "1.0"]
    assert list((tmp_path / "output").rglob("*superseded*")), "wrong rows had been committed"
    assert_rows_exact(tmp_path / "output")


def started(site: Installation, root: Path, settings: dict[str, str]) -> None:
    """Run 1, with a checkpoint."""
    given = [f"--set={key}={value}" for key, value in settings.items()]
    places = [f"--parameter={name}={root / name}" for name in ("output", "hurry")]
    code = ["--code", str(package(root, "1.0", GOOD)), "--flow", "orders"]
    words = ["--master", "processes", "--parallelism", "2", *given, *places]
    site.manage("pipeline", "submit", "shop", *code, *words)
    site.wait_for(lambda: site.completed(1) >= 2)


def upgrade(site: Installation, wheel: Path) -> None:
    (asked,) = json.loads(site.manage("upgrade", "shop", "--to", str(wheel), "--json"))
    assert asked["is_open"]


def package(root: Path, version: str, values: str) -> Path:
    return shop_wheel(root / version, version, FLOW.replace("VALUES", values))


def kill_driver(site: Installation, number: int) -> None:
    query = f"SELECT driver_pid FROM jobs_run WHERE number = {number}"
    site.wait_for(lambda: site.rows(query)[0][0] is not None)
    os.kill(site.rows(query)[0][0], signal.SIGKILL)


def outcome(site: Installation) -> tuple[str, str]:
    (found,) = site.rows("SELECT phase, message FROM jobs_request WHERE kind = 'UPGRADE'")
    return str(found[0]), str(found[1])


def versions(site: Installation) -> list[str]:
    codes = site.rows("SELECT code FROM jobs_run ORDER BY number")
    return [json.loads(code)["version"] for (code,) in codes]
