"""An installation is upgraded in place and goes back, while a pipeline goes on with its driver.

The older version is that of the newest tag, if there are migrations since, and else the code before
the newest migrations. It lies in a checkout of its own beside this one, with the same home.
"""

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
    """Its commit."""
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


def test_a_pipeline_goes_on_over_an_upgrade_of_ftdash_and_back(
    old: Installation, tmp_path: Path
) -> None:
    new, backup = Installation(old.home), tmp_path / "backup.tar.gz"
    old.manage("migrate", "--no-input", "--verbosity=0", "--skip-checks")
    old.start_worker()
    started(old, tmp_path, SOON)
    [(driver, run)] = old.rows("SELECT driver_pid, run_id FROM jobs_run")
    old.manage("backup", str(backup))
    tables = applied(old)
    old.kill_worker()

    new.manage("prepare")
    assert applied(new) > tables
    new.start_worker()
    seen = new.completed(1)
    new.wait_for(lambda: new.completed(1) >= seen + 3)
    new.manage("pipeline", "savepoint", "shop")
    new.wait_for(lambda: requests(new).get("SAVEPOINT") == "SUCCEEDED")
    new.kill_worker()

    new.manage("prepare", "--as-in", str(backup))
    assert applied(old) == tables
    old.start_worker()
    seen = old.completed(1)
    old.wait_for(lambda: old.completed(1) >= seen + 3)
    assert requests(old)["SAVEPOINT"] == "SUCCEEDED"
    assert old.rows("SELECT driver_pid, run_id FROM jobs_run") == [(driver, run)]
    (tmp_path / "hurry").touch()
    old.wait_for(lambda: old.statuses() == [JobStatus.FINISHED])
    assert_rows_exact(tmp_path / "output")


def applied(installation: Installation) -> set[tuple[str, str]]:
    return set(installation.rows("SELECT app, name FROM django_migrations"))


def requests(installation: Installation) -> dict[str, str]:
    return dict(installation.rows("SELECT kind, phase FROM jobs_request"))
