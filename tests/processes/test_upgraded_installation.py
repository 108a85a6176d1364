"""An installation is upgraded in place while a pipeline continues with its driver.

It is downgraded again, or the driver is killed and one of the newer version continues.

The older version is that of the newest tag, if there are migrations since, or else the code before
the newest migrations. It is in a checkout of its own beside this one, with the same home.
"""

import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.domain.status import JobStatus
from tests.processes.installation import ROOT, SOON, Installation, started
from tests.processes.numbers import assert_rows_exact

pytestmark = pytest.mark.slow

MIGRATIONS_BETWEEN = 2
ADDED = ("--diff-filter=A", "--no-renames", "--format=%H", "--", "ftdash/*/migrations/0*.py")


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def older_version() -> str:
    """Returns the commit of the older version."""
    tags = git("tag", "--list", "v*", "--sort=-version:refname", "--no-contains", "HEAD").split()
    if tags and git("log", f"{tags[0]}..HEAD", *ADDED):
        return git("rev-list", "-1", tags[0])
    *_, oldest = git("log", f"-{MIGRATIONS_BETWEEN}", *ADDED).split()
    return git("rev-parse", f"{oldest}^")


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Installation]:
    checkout = tmp_path / "old"
    checkout.mkdir()
    archive = tmp_path / "old.tar"
    git("archive", f"--output={archive}", older_version(), "ftdash", "pipelines", "tests",
        "templates", "static", "docs", "manage.py", "examples")  # fmt: skip
    with tarfile.open(archive) as packed:
        packed.extractall(checkout, filter="data")
    installation = Installation(tmp_path / "home", checkout)
    yield installation
    installation.kill_all()


def test_a_pipeline_survives_an_upgrade_of_ftdash_and_a_downgrade(
    old: Installation, tmp_path: Path
) -> None:
    backup = tmp_path / "backup.tar.gz"
    begin(old, tmp_path, SOON)
    old.manage("backup", str(backup))
    tables = applied(old)
    [(driver, run)] = drivers(old)

    new = upgraded(old)
    assert applied(new) > tables
    new.manage("pipeline", "savepoint", "shop")
    new.wait_for(lambda: requests(new).get("SAVEPOINT") == "SUCCEEDED")
    new.kill_worker()

    new.manage("prepare", "--as-in", str(backup))
    assert applied(old) == tables
    old.start_worker()
    seen = old.completed(1)
    old.wait_for(lambda: old.completed(1) >= seen + 3)
    assert requests(old)["SAVEPOINT"] == "SUCCEEDED"
    assert drivers(old) == [(driver, run)]
    (tmp_path / "hurry").touch()
    old.wait_for(lambda: old.statuses() == [JobStatus.FINISHED])
    assert_rows_exact(tmp_path / "output")


def test_after_an_upgrade_a_new_driver_continues_the_run_of_a_killed_one(
    old: Installation, tmp_path: Path
) -> None:
    begin(old, tmp_path, SOON | {"restart-strategy.type": "exponential-delay"})
    [(driver, run)] = drivers(old)

    new = upgraded(old)
    os.kill(driver, signal.SIGKILL)
    new.wait_for(lambda: drivers(new)[0][0] not in (driver, None))
    [(successor, same)] = drivers(new)
    seen = new.completed(1)
    new.wait_for(lambda: new.completed(1) >= seen + 3)

    assert same == run
    assert Path(f"/proc/{successor}/cwd").readlink() == new.checkout
    (tmp_path / "hurry").touch()
    new.wait_for(lambda: new.statuses() == [JobStatus.FINISHED])
    new.kill_worker()
    assert_rows_exact(tmp_path / "output")


def begin(old: Installation, root: Path, settings: dict[str, str]) -> None:
    old.manage("migrate", "--no-input", "--verbosity=0", "--skip-checks")
    old.start_worker()
    started(old, root, settings)


def upgraded(old: Installation) -> Installation:
    """Upgrades in place, and waits for three more checkpoints of the run that continues."""
    old.kill_worker()
    new = Installation(old.home)
    new.manage("prepare")
    new.start_worker()
    seen = new.completed(1)
    new.wait_for(lambda: new.completed(1) >= seen + 3)
    return new


def drivers(installation: Installation) -> list[tuple[int, str]]:
    return installation.rows("SELECT driver_pid, run_id FROM jobs_run")


def applied(installation: Installation) -> set[tuple[str, str]]:
    return set(installation.rows("SELECT app, name FROM django_migrations"))


def requests(installation: Installation) -> dict[str, str]:
    return dict(installation.rows("SELECT kind, phase FROM jobs_request"))
