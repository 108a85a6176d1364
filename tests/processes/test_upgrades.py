"""Upgrades of a pipeline with a shipped package, one that succeeds and one that goes back.

The output is exact over both, with the worker or a driver killed in between. The command, the
worker's rounds, the check, drivers and slots are processes of their own, as in an installation;
only the broker and Spark are missing.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.domain.status import JobStatus
from tests.new_home import new_home
from tests.processes.installation import GOOD, SOON, Installation, package, started
from tests.processes.numbers import assert_rows_exact

pytestmark = pytest.mark.slow

BAD = "7_100, 0.3, 6_600, 1"
"""Commits wrong rows for a while, and then fails at every attempt."""

HARD = {**SOON, "pipeline.upgrade.checkpoints": "1000"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(new_home(tmp_path / "home"))
    installation.start_worker()
    yield installation
    installation.kill_all()


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
def test_the_output_is_exact_over_an_upgrade_that_is_rolled_back(
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
    assert message.startswith("It went back: the previous code continues from ")
    assert versions(site) == ["1.0", "2.0", "1.0"]
    assert list((tmp_path / "output").rglob("*superseded*")), "wrong rows had been committed"
    assert_rows_exact(tmp_path / "output")


def upgrade(site: Installation, wheel: Path) -> None:
    (asked,) = json.loads(site.manage("upgrade", "shop", "--to", str(wheel), "--json"))
    assert asked["is_open"]


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
