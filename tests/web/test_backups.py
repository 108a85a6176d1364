"""A backup of the control plane, taken while it runs; its restore into an empty installation."""

import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shutil import copy, copytree
from typing import TYPE_CHECKING

import pytest

from ftdash.embedded.installation import free_port
from pipelines.bus.journal import JournalWriter
from pipelines.domain.events import JobStatusChanged
from pipelines.domain.ids import Attempt, RunId
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import JobStatus
from tests.new_home import new_home

if TYPE_CHECKING:
    from tests.postgres_server import PostgresServer

ROOT = Path(__file__).parents[2]
START = "import django; django.setup()\n"
PREPARE = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
from tests.web.journals import new_run
new_run()
"""
FOLD = "from ftdash.projection.projector import Projector; Projector().run_once()"
STATUS = "from ftdash.jobs.models import Run; print(*Run.objects.values_list('status'))"


@dataclass(frozen=True)
class Installation:
    """One installation. Its processes get its environment; this process does not."""

    home: Path
    database: str | None = None  # its URL; None means SQLite
    programs: Path | None = None  # those of PostgreSQL

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        outside = {key: each for key, each in os.environ.items() if not key.startswith("FTDASH_")}
        given = {"FTDASH_HOME": str(self.home), "DJANGO_SETTINGS_MODULE": "ftdash.settings"}
        if self.database:
            given["FTDASH_DATABASE_URL"] = self.database
        if self.programs:
            given["PATH"] = f"{self.programs}:{outside['PATH']}"
        return subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**outside, **given},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def python(self, program: str) -> str:
        ran = self.run("-c", START + program)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def report(self, status: JobStatus) -> None:
        """Writes to the journal of the run, as a driver does."""
        directory = RunDirectory.of(self.home / "jobs", "flights", RunId("flights-1"))
        with JournalWriter(directory, RunId("flights-1"), Clock(), lambda *_: None) as journal:
            journal.append(JobStatusChanged(status=status), Attempt(1))

    @property
    def status(self) -> str:
        return self.python(STATUS).strip()


class Clock:
    def monotonic_ms(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 1_000


Installations = Callable[[str], Installation]


@pytest.fixture(params=["sqlite", "postgresql"])
def installations(request: pytest.FixtureRequest, tmp_path: Path, worker_id: str) -> Installations:
    """Returns a function that makes an empty installation for a name."""
    if request.param == "sqlite":
        return lambda name: Installation(tmp_path / name)
    server: PostgresServer = request.getfixturevalue("postgres")

    def empty(name: str) -> Installation:
        database = f"backup_{name}_{worker_id}"
        server.execute(f'drop database if exists "{database}"')
        server.execute(f'create database "{database}"')
        url = server.url.rpartition("/")[0] + f"/{database}"
        return Installation(tmp_path / name, url, Path(server.program("pg_dump")).parent)

    return empty


@pytest.mark.slow
def test_a_restored_installation_catches_up_from_journals_newer_than_the_backup(
    installations: Installations, tmp_path: Path
) -> None:
    old, file = installations("old"), tmp_path / "backup.tar.gz"
    if old.database is None:
        new_home(old.home)
    old.python(PREPARE)
    old.report(JobStatus.RUNNING)
    old.python(FOLD)
    taken = old.run("manage.py", "backup", str(file))
    assert taken.returncode == 0, taken.stderr
    old.report(JobStatus.FINISHED)
    old.python(FOLD)

    new = installations("new")
    restored = new.run("manage.py", "restore", str(file))
    assert restored.returncode == 0, restored.stderr
    assert new.status == "('RUNNING',)"
    copytree(old.home / "jobs", new.home / "jobs", dirs_exist_ok=True)
    new.python(FOLD)

    assert new.status == old.status == "('FINISHED',)"
    for name in ("secret_key", "installation_id"):
        assert (new.home / name).read_text() == (old.home / name).read_text()
        assert (new.home / name).stat().st_mode & 0o777 == 0o600
    examined = json.loads(new.run("manage.py", "doctor", "--json").stdout)
    verdicts = {each["part"]: each["verdict"] for each in examined}
    assert {verdicts[part] for part in ("database", "migrations", "clock")} == {"well"}
    again = new.run("manage.py", "restore", str(file))
    assert again.returncode == 2
    assert "There is an installation in" in again.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("backups")
    installation = Installation(new_home(directory / "old"))
    file = directory / "backup.tar.gz"
    installation.python(PREPARE)
    ran = installation.run("manage.py", "backup", str(file))
    assert ran.returncode == 0, ran.stderr
    assert "keep it private" in ran.stdout
    return file


@pytest.fixture
def backup(made: Path, tmp_path: Path) -> Path:
    """Returns a copy that a test may damage."""
    return Path(copy(made, tmp_path))


@pytest.mark.slow
def test_a_backup_is_private_and_never_replaces_a_file(made: Path) -> None:
    assert made.stat().st_mode & 0o777 == 0o600
    content = made.read_bytes()

    again = Installation(made.parent / "old").run("manage.py", "backup", str(made))

    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert made.read_bytes() == content
    assert sorted(path.name for path in made.parent.iterdir()) == ["backup.tar.gz", "old"]


@pytest.mark.slow
def test_without_an_installation_there_is_nothing_to_back_up(tmp_path: Path) -> None:
    ran = Installation(tmp_path / "home").run("manage.py", "backup", str(tmp_path / "file"))

    assert ran.returncode == 2
    assert "There is no installation" in ran.stderr
    assert not (tmp_path / "file").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["backup", "restore"])
def test_an_unreachable_database_is_named_with_its_cure(tmp_path: Path, command: str) -> None:
    away = Installation(tmp_path / "home", f"postgresql://x@127.0.0.1:{free_port()}/x")

    ran = away.run("manage.py", command, str(tmp_path / "file"))

    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    assert "It does not answer" in ran.stderr
    assert "correct FTDASH_DATABASE_URL" in ran.stderr


def altered(file: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    with tarfile.open(file, "r:gz") as archive:
        parts = {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
    parts[name] = change(parts[name])
    with tarfile.open(file, "w:gz") as archive:
        for each, content in parts.items():
            about = tarfile.TarInfo(each)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))


def damaged(file: Path) -> None:
    altered(file, "database", lambda content: content[:-1] + bytes([content[-1] ^ 1]))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2000])


def no_archive(file: Path) -> None:
    file.write_text("what?")


def of_a_newer_version(file: Path) -> None:
    altered(file, "manifest.json", lambda text: text.replace(b"0001_initial", b"9001_later"))


def of_another_database(file: Path) -> None:
    altered(file, "manifest.json", lambda text: text.replace(b'"sqlite"', b'"postgresql"'))


def with_a_path_upwards(file: Path) -> None:
    altered(file, "manifest.json", lambda text: text.replace(b'"secret_key"', b'"../secret_key"'))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (damaged, "is damaged: the file database"),
        (cut, "is no backup of ftdash, or is damaged"),
        (no_archive, "is no backup of ftdash, or is damaged"),
        (of_a_newer_version, "newer version of ftdash"),
        (of_another_database, "holds a postgresql database"),
        (with_a_path_upwards, "files that no backup has"),
        (Path.unlink, "There is no file"),
    ],
)
def test_an_unfit_backup_is_refused_in_a_sentence_and_changes_nothing(
    backup: Path, tmp_path: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    spoil(backup)
    new = Installation(tmp_path / "new")

    ran = new.run("manage.py", "restore", str(backup))

    assert (ran.returncode, ran.stdout) == (2, "")
    assert sentence in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert read_tables(new.home) == []


def read_tables(home: Path) -> list[str]:
    database = home / "ftdash.sqlite3"
    with closing(sqlite3.connect(database)) as connected:
        return [name for (name,) in connected.execute("select name from sqlite_master")]
