"""An installation is upgraded from the previous release while a pipeline continues.

The driver of the release carries out the requests of the newer version. It lives through a
downgrade, and a driver of the newer version continues its run when it dies or stops.

The release is its wheel in an environment of its own, with its tests beside it, and its database is
in PostgreSQL. That environment finds the packages of this one: pip, which has no network here,
accepts them only if they meet the requirements of the release.
"""

import json
import os
import signal
import subprocess
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pipelines.domain.status import JobStatus
from tests.previous_release import Release, git, previous_release
from tests.processes.installation import ROOT, SOON, Code, Installation, started
from tests.processes.numbers import assert_rows_exact
from tests.project_wheels import built_wheel

if TYPE_CHECKING:
    from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

INTERVAL = "execution.checkpointing.interval"


@pytest.fixture(scope="module")
def installed_release(tmp_path_factory: pytest.TempPathFactory) -> Code:
    return install(previous_release(), tmp_path_factory.mktemp("release"))


@pytest.fixture
def old(
    installed_release: Code,
    postgres: "PostgresServer",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Installation]:
    programs = Path(postgres.program("pg_dump")).parent
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    postgres.execute(f'create database "{tmp_path.name}"')
    database = f"{postgres.url.rpartition('/')[0]}/{tmp_path.name}"
    installation = Installation(tmp_path / "home", installed_release, database=database)
    yield installation
    installation.kill_all()


def test_a_pipeline_survives_an_upgrade_a_downgrade_and_the_death_of_its_driver_after_another(
    old: Installation, tmp_path: Path
) -> None:
    backup = tmp_path / "backup.tar.gz"
    begin(old, tmp_path, SOON | {"restart-strategy.type": "exponential-delay"})
    old.manage("backup", str(backup))
    tables = applied(old)
    [(driver, run)] = drivers(old)

    new = upgraded(old)
    assert applied(new) > tables
    new.manage("pipeline", "savepoint", "shop", "--wait")
    new.manage("pipeline", "set", "shop", f"{INTERVAL}=150 ms", "--wait")
    new.wait_for(lambda: interval_now(new) == "150 ms")
    new.kill_worker()

    new.manage("prepare", "--as-in", str(backup))
    assert applied(old) == tables
    old.start_worker()
    continue_for_three_checkpoints(old, 1)
    assert requests(old) == {
        ("SUBMIT", "SUCCEEDED"),
        ("SAVEPOINT", "SUCCEEDED"),
        ("CHANGE_SETTINGS", "SUCCEEDED"),
    }
    assert interval_now(old) == "150 ms"
    assert drivers(old) == [(driver, run)]

    new = upgraded(old)
    assert drivers(new) == [(driver, run)]
    os.kill(driver, signal.SIGKILL)
    new.wait_for(lambda: drivers(new)[0][0] not in (driver, None))
    [(successor, same)] = drivers(new)
    continue_for_three_checkpoints(new, 1)
    assert same == run
    assert program_of(successor) == new.code.python
    finish(new, tmp_path)


def test_a_driver_of_the_release_stops_with_a_savepoint_and_the_newer_version_continues_from_it(
    old: Installation, tmp_path: Path
) -> None:
    begin(old, tmp_path, SOON)

    new = upgraded(old)
    [stopped] = json.loads(new.manage("pipeline", "stop", "shop", "--wait", "--json"))
    assert stopped["phase"] == "SUCCEEDED"
    new.wait_for(lambda: new.statuses() == [JobStatus.FINISHED])
    new.manage("pipeline", "restore", "shop", stopped["path"], "--master", "processes", "--wait")
    continue_for_three_checkpoints(new, 2)

    [(driver,)] = new.rows("SELECT driver_pid FROM jobs_run WHERE number = 2")
    assert program_of(driver) == new.code.python
    finish(new, tmp_path)


def install(release: Release, directory: Path) -> Code:
    archive, source = directory / "release.tar", directory / "source"
    git(ROOT, "archive", f"--output={archive}", release.commit)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    wheel = built_wheel(source, directory / "wheel")
    environment = directory / "environment"
    venv.create(environment)
    [site] = environment.glob("lib/python*/site-packages")
    (site / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
    python = str(environment / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-compile"]
    subprocess.run([*pip, f"{wheel}[dashboard]"], check=True)
    place = directory / "place"
    place.mkdir()
    (source / "tests").rename(place / "tests")
    return Code(python, place)


def begin(old: Installation, root: Path, settings: dict[str, str]) -> None:
    """Starts a pipeline in an installation of the release."""
    old.manage("migrate", "--no-input", "--verbosity=0", "--skip-checks")
    old.start_worker()
    started(old, root, settings)
    [(driver, _)] = drivers(old)
    assert program_of(driver) == old.code.python
    assert old.manage("--version") == f"ftdash {previous_release().version}\n"


def upgraded(old: Installation) -> Installation:
    """Upgrades, and waits for three more checkpoints of the run that continues."""
    old.kill_worker()
    new = Installation(old.home, database=old.database)
    new.manage("prepare")
    new.start_worker()
    continue_for_three_checkpoints(new, 1)
    return new


def continue_for_three_checkpoints(installation: Installation, number: int) -> None:
    seen = installation.completed(number)
    installation.wait_for(lambda: installation.completed(number) >= seen + 3)


def finish(installation: Installation, root: Path) -> None:
    (root / "hurry").touch()
    installation.wait_for(lambda: installation.statuses()[-1] == JobStatus.FINISHED)
    installation.kill_worker()
    assert_rows_exact(root / "output")


def drivers(installation: Installation) -> list[tuple[int, str]]:
    return installation.rows("SELECT driver_pid, run_id FROM jobs_run")


def program_of(pid: int) -> str:
    return psutil.Process(pid).cmdline()[0]


def applied(installation: Installation) -> set[tuple[str, str]]:
    return set(installation.rows("SELECT app, name FROM django_migrations"))


def requests(installation: Installation) -> set[tuple[str, str]]:
    return set(installation.rows("SELECT kind, phase FROM jobs_request"))


def interval_now(installation: Installation) -> str | None:
    """Returns the checkpoint interval that a person has set during the run."""
    [(interval,)] = installation.rows(f"SELECT changed_settings ->> '{INTERVAL}' FROM jobs_run")
    return interval
