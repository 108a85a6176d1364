"""An installation without Spark and a broker, and a pipeline in it that waits for a test.

Its worker is a loop of rounds, and its drivers host their slots. It may run other code than this
checkout, such as a release with an environment of its own.
"""

import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.polling import wait_until
from tests.shipped_packages import shop_wheel

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
SOON = {
    "execution.checkpointing.interval": "100 ms",
    "restart-strategy.type": "none",
}


@dataclass(frozen=True, slots=True)
class Code:
    """The interpreter that runs ftdash, and the directory that has this code's `tests`."""

    python: str = sys.executable
    place: Path = ROOT


class Installation:
    """The commands of an installation in `home`, and one worker at a time.

    `database` is the URL of a database in PostgreSQL; without it, the database is SQLite's.
    """

    def __init__(self, home: Path, code: Code = Code(), *, database: str = "") -> None:
        self.home = home
        self.code = code
        self.database = database
        self.worker: subprocess.Popen[bytes] | None = None
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(code.place),  # drivers find `tests` there
            "FTDASH_HOME": str(home),
            "FTDASH_PIPELINE_VARIABLES": "FTDASH_HOME",  # `kill_all` finds drivers by it
            "FTDASH_DATABASE_URL": database,
            "DJANGO_SETTINGS_MODULE": "tests.processes.upgrade_settings",
        }

    def manage(self, *words: str) -> str:
        told = subprocess.run(
            [self.code.python, "-m", "ftdash", *words],
            cwd=self.code.place,
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
                [self.code.python, "-m", "tests.processes.upgrade_worker"],
                cwd=self.code.place,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill_worker(self) -> None:
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        if self.database:
            with psycopg.connect(self.database) as connection:
                return connection.execute(query.encode()).fetchall()
        with sqlite3.connect(self.home / "ftdash.sqlite3", timeout=STEP_S) as database:
            return database.execute(query).fetchall()

    def statuses(self) -> list[str]:
        return [status for (status,) in self.rows("SELECT status FROM jobs_run ORDER BY number")]

    def step(self) -> str:
        return str(self.rows("SELECT step FROM jobs_upgrade")[0][0])

    def completed(self, number: int) -> int:
        """Returns the number of completed checkpoints of that run."""
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

    def kill_all(self) -> None:
        """Kills its worker, and every process started in its environment."""
        if self.worker is not None:
            self.kill_worker()
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get("FTDASH_HOME") == str(self.home)
                if is_ours:
                    process.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue


def started(site: Installation, root: Path, settings: dict[str, str]) -> None:
    """Submits run 1 and waits for two completed checkpoints."""
    given = [f"--set={key}={value}" for key, value in settings.items()]
    places = [f"--parameter={name}={root / name}" for name in ("output", "hurry")]
    code = ["--code", str(package(root, "1.0", GOOD)), "--flow", "orders"]
    words = ["--master", "processes", "--parallelism", "2", *given, *places]
    site.manage("pipeline", "submit", "shop", *code, *words)
    site.wait_for(lambda: site.completed(1) >= 2)


def package(root: Path, version: str, values: str) -> Path:
    return shop_wheel(root / version, version, FLOW.replace("VALUES", values))
