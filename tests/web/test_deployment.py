"""An installation on a server: its health addresses, its doctor and its units."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery
from celery.fixups.django import DjangoWorkerFixup
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DatabaseError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone

from ftdash.celery import application
from ftdash.deployment import doctor
from ftdash.deployment.doctor import Diagnosis, PartState
from ftdash.deployment.management.commands import doctor as doctor_command
from ftdash.deployment.units import Server, install, unit_files
from ftdash.embedded.installation import free_port
from ftdash.jobs.directories import run_directory
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.projection import projector
from ftdash.projection.projector import Projector
from ftdash.settings import SECRET_VARIABLES
from ftdash.times import epoch_ms
from pipelines.domain.errors import Rejected
from tests.web.journals import Story, StoryClock, new_run
from tests.web.people import admin_user

if TYPE_CHECKING:
    from tests.brokers.redis_broker import RedisBroker

ROOT = Path(__file__).parents[2]
SECRET = "opensesame"
SERVER = Server(account="ftdash", home=Path("/var/lib/ftdash"), port=8000)


@pytest.fixture
def installation(
    site: Path,
    patient: float,
    settings: Any,
    redis_server: "RedisBroker",
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Everything that pages need: tables, Redis, and a projector that was active a moment ago."""
    settings.REDIS_URL = redis_server.url
    monkeypatch.setattr(doctor, "application", Celery("here", broker=redis_server.url))
    monkeypatch.setattr(doctor, "WORKER_TIMEOUT_S", 0.2)
    settings.FTDASH_HOME = site
    for name in HeartbeatName:
        Heartbeat.objects.create(name=name, at=timezone.now(), pid=os.getpid())
    key = site / "secret_key"
    key.write_text(SECRET)
    key.chmod(0o600)
    return site


def test_a_worker_starts_without_checks_that_would_load_all_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[str] = []
    monkeypatch.setattr("django.core.checks.run_checks", lambda: checked.append("all pages"))

    DjangoWorkerFixup(application).validate_models()

    assert checked == []


def test_a_probe_learns_without_signing_in_that_pages_can_be_served(installation: Path) -> None:
    answers = [Client().get(path) for path in ("/healthz", "/readyz")]

    assert [(each.status_code, each.content) for each in answers] == [
        (200, b"healthy\n"),
        (200, b"ready\n"),
    ]
    assert all("no-cache" in each["Cache-Control"] for each in answers)


def no_redis(settings: Any) -> None:
    settings.REDIS_URL = f"redis://:{SECRET}@127.0.0.1:{free_port()}/0"


def no_projector(settings: Any) -> None:
    Heartbeat.objects.filter(name=HeartbeatName.PROJECTOR).delete()


def no_newest_migration(settings: Any) -> None:
    MigrationRecorder.Migration.objects.filter(app="incidents").delete()


@pytest.mark.parametrize("without", [no_redis, no_projector, no_newest_migration])
def test_a_missing_dependency_is_answered_as_not_ready_without_detail(
    installation: Path, settings: Any, without: Any
) -> None:
    without(settings)

    ready, healthy = Client().get("/readyz"), Client().get("/healthz")

    assert (ready.status_code, ready.content) == (503, b"not ready\n")
    assert healthy.status_code == 200


def test_an_absent_database_makes_the_server_not_ready_without_an_error(
    installation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise DatabaseError("connection to server at 10.0.0.7 refused")

    with monkeypatch.context() as within:
        within.setattr(connection, "ensure_connection", refuse)
        answer = Client().get("/readyz")

    assert (answer.status_code, answer.content) == (503, b"not ready\n")


def test_a_server_is_ready_once_the_projector_has_read_all_old_events(
    installation: Path, no_time_passes: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    Story(new_run(), StoryClock(epoch_ms(no_time_passes) - 65_000)).started()

    with monkeypatch.context() as within:
        within.setattr(projector, "READ_BYTES_MAX", 1)  # a round reads one line
        Projector().run_once()
    lagging, diagnosis = Client().get("/readyz"), found("journals")
    Projector().run_once()

    assert (lagging.status_code, lagging.content) == (503, b"not ready\n")
    assert diagnosis.verdict is PartState.BROKEN
    assert "1 min 05 s old (allowed: 1 min 00 s)" in diagnosis.finding
    assert "journalctl -u ftdash-projector" in diagnosis.cure
    assert Client().get("/readyz").status_code == 200
    assert found("journals").verdict is PartState.WELL


def test_the_doctor_warns_of_a_stopped_projection_and_the_server_stays_ready(
    installation: Path,
) -> None:
    run = new_run()
    Story(run).started()
    with run_directory(run).journal_file.open("ab") as file:
        file.write(b"{}\n")
    for _ in range(2):  # reads up to the line, and stops at it
        Projector().run_once()

    diagnosis = found("journals")

    assert diagnosis.verdict is PartState.WARNING
    assert diagnosis.finding == f"The projection of {run.run_id} has stopped."
    assert "--rebuild" in diagnosis.cure
    assert Client().get("/readyz").status_code == 200


def found(part: str) -> doctor.Diagnosis:
    [diagnosis] = [each for each in doctor.examine() if each.part == part]
    return diagnosis


def test_the_doctor_reports_only_the_worker_that_is_not_started(
    installation: Path, settings: Any
) -> None:
    admin_user()
    settings.STATIC_ROOT = installation
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    (installation / "staticfiles.json").write_text("{}")

    found = list(doctor.examine())

    troubles = [each for each in found if each.verdict is not PartState.WELL]
    assert [each.part for each in troubles] == ["worker"]  # no test starts one here
    assert len(found) == 15


def test_every_trouble_comes_with_its_cure(installation: Path, settings: Any) -> None:
    no_projector(settings)
    settings.STATIC_ROOT = installation / "nowhere"
    settings.DEBUG = True

    troubles = [each for each in doctor.examine() if each.verdict is not PartState.WELL]

    assert {"projector", "static files", "addresses", "people"} <= {each.part for each in troubles}
    assert all(each.finding and each.cure for each in troubles)


def test_an_unreachable_redis_is_named_without_its_password(
    installation: Path, settings: Any
) -> None:
    no_redis(settings)

    diagnosis = found("Redis")

    assert diagnosis.verdict is PartState.BROKEN
    assert SECRET not in diagnosis.finding + diagnosis.cure
    assert "worker" not in {each.part for each in doctor.examine()}  # one problem gives one finding


def test_a_redis_that_drops_messages_is_a_warning(installation: Path, settings: Any) -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            assert found("Redis").verdict is PartState.WARNING
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert found("Redis").verdict is PartState.WELL


def test_a_secret_key_that_others_can_read_is_a_warning(installation: Path) -> None:
    (installation / "secret_key").chmod(0o644)

    assert found("secret key").verdict is PartState.WARNING


def test_a_disk_that_is_nearly_full_is_a_warning(
    installation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "FREE_BYTES_MIN", 1 << 60)

    assert found("home").verdict is PartState.WARNING


def test_missing_migrations_are_named_and_no_check_reads_the_tables(
    installation: Path, settings: Any
) -> None:
    no_newest_migration(settings)

    diagnosis = found("migrations")

    assert diagnosis.verdict is PartState.BROKEN
    assert "incidents" in diagnosis.finding
    assert "ftdash prepare" in diagnosis.cure
    assert "projector" not in {each.part for each in doctor.examine()}


@pytest.mark.parametrize(
    ("hosts", "behind_tls", "verdict"),
    [
        (["127.0.0.1"], False, PartState.WELL),
        (["*"], True, PartState.WARNING),
        (["ftdash.example.org"], False, PartState.WARNING),
        (["ftdash.example.org"], True, PartState.WELL),
    ],
)
def test_host_names_that_others_can_reach_need_tls(
    installation: Path, settings: Any, hosts: list[str], behind_tls: bool, verdict: PartState
) -> None:
    settings.ALLOWED_HOSTS, settings.BEHIND_TLS = hosts, behind_tls

    assert found("addresses").verdict is verdict


def test_the_doctor_prints_each_part_and_exits_with_1_if_one_is_broken(
    installation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        call_command("doctor", "--json")
    told = json.loads(capsys.readouterr().out)

    assert end.value.code == 1
    assert {each["part"] for each in told} >= {"home", "database", "worker"}

    with pytest.raises(SystemExit):
        call_command("doctor")
    assert "systemctl start ftdash-worker" in capsys.readouterr().out


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_the_doctor_shows_a_part_while_it_examines_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, shown = Terminal(), []

    def examine() -> Iterator[Diagnosis]:
        for part in ("home", "database", "queue"):
            shown.append(terminal.getvalue())
            yield doctor.well(part, "It works.")

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(doctor_command, "examine", examine)

    call_command("doctor", stdout=terminal)

    assert ["home" in each for each in shown] == [False, True, True]
    assert ["database" in each for each in shown] == [False, False, True]
    assert "queue" in terminal.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "cure"),
    [
        ({}, "ftdash prepare"),
        ({"FTDASH_DATABASE_URL": "postgresql://x@127.0.0.1:{port}/x"}, "FTDASH_DATABASE_URL"),
    ],
)
def test_an_empty_home_or_absent_server_is_a_finding_without_a_traceback(
    tmp_path: Path, variables: dict[str, str], cure: str
) -> None:
    given = {key: value.format(port=free_port()) for key, value in variables.items()}
    outside = {key: value for key, value in os.environ.items() if not key.startswith("FTDASH_")}

    ran = subprocess.run(
        [sys.executable, "manage.py", "doctor"],
        cwd=ROOT,
        env={**outside, **given, "FTDASH_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (1, "")
    assert cure in ran.stdout


@pytest.fixture
def units(tmp_path: Path) -> Path:
    install(SERVER, tmp_path)
    return tmp_path


def test_each_service_of_an_installation_has_its_unit(units: Path) -> None:
    names = {path.name for path in (units / "usr/lib/systemd/system").iterdir()}
    services = {"web", "worker", "beat", "projector", "prepare"}

    assert names == {f"ftdash-{each}.service" for each in services} | {"ftdash.target"}


def test_a_driver_outlives_the_worker_that_started_it(units: Path) -> None:
    texts = {
        path.stem: path.read_text() for path in (units / "usr/lib/systemd/system").glob("*.service")
    }

    assert [name for name, text in texts.items() if "KillMode=process" in text] == ["ftdash-worker"]
    assert "PrivateTmp" not in texts["ftdash-worker"]  # it is removed when the unit stops
    assert "ReadWritePaths=/tmp" in texts["ftdash-worker"]  # else Spark could not write there
    assert not [name for name, text in texts.items() if "RemoveIPC" in text]


def test_no_process_runs_as_root_and_each_gets_the_secrets_that_it_needs(units: Path) -> None:
    folder = units / "usr/lib/systemd/system"
    only_reader = {"ftdash-oidc-secret": "ftdash-web", "ftdash-mail-password": "ftdash-worker"}
    for unit in folder.glob("*.service"):
        lines = unit.read_text().splitlines()
        assert {"User=ftdash", "NoNewPrivileges=yes", "ProtectSystem=strict"} <= set(lines)
        for name in SECRET_VARIABLES:
            secret = name.lower().replace("_", "-")
            is_needed = unit.stem == only_reader.get(secret, unit.stem)
            assert (f"LoadCredential={secret}:/etc/ftdash/secrets/{secret}" in lines) is is_needed
            # Otherwise an absent file is an error.
            assert (f"SetCredential={secret}:\\n" in lines) is is_needed


def test_only_root_reads_the_environment_file_which_is_never_replaced(units: Path) -> None:
    environment = units / "etc/ftdash/environment"
    assert environment.stat().st_mode & 0o777 == 0o600
    environment.write_text("FTDASH_REDIS_URL=mine\n")

    assert install(SERVER, units, replace=True) == []
    assert environment.read_text() == "FTDASH_REDIS_URL=mine\n"


def test_a_changed_unit_is_kept_unless_replace_is_given(units: Path) -> None:
    unit = units / "usr/lib/systemd/system/ftdash-web.service"
    written = unit.read_text()
    unit.write_text("mine")

    with pytest.raises(Rejected, match=r"ftdash-web\.service differ .* --replace"):
        install(SERVER, units)
    assert unit.read_text() == "mine"

    assert [each.path.name for each in install(SERVER, units, replace=True)] == [unit.name]
    assert unit.read_text() == written


def test_the_command_prints_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("install_units", "--root", str(tmp_path), "--account", "streams")

    assert "systemctl enable --now ftdash.target" in capsys.readouterr().out
    assert "User=streams" in (tmp_path / "usr/lib/systemd/system/ftdash-web.service").read_text()

    (tmp_path / "usr/lib/systemd/system/ftdash.target").write_text("mine")
    with pytest.raises(CommandError, match="--replace"):
        call_command("install_units", "--root", str(tmp_path), "--account", "streams")


def test_the_command_of_another_environment_lets_the_services_start_from_there(
    tmp_path: Path, settings: Any
) -> None:
    call_command("install_units", "--root", str(tmp_path))
    settings.MANAGE_COMMAND = ["/opt/ftdash-0.3.0/bin/python", "-m", "ftdash"]

    call_command("install_units", "--root", str(tmp_path), "--replace")

    services = [each.read_text() for each in tmp_path.glob("usr/lib/systemd/system/*.service")]
    started = "ExecStart=/opt/ftdash-0.3.0/bin/python -m ftdash "
    assert [started in each for each in services] == [True] * 5


def test_the_same_server_gives_the_same_files() -> None:
    assert unit_files(SERVER) == unit_files(SERVER)


def systemd_analyze(units: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs systemd-analyze, which finds our units and those of this machine."""
    return subprocess.run(
        ["systemd-analyze", *words],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and not os.environ.get("FTDASH_REQUIRE_ALL"),
    reason="there is no systemd-analyze; install systemd",
)


@needs_systemd
@pytest.mark.parametrize("name", ["web", "worker", "beat", "projector", "prepare"])
def test_systemd_accepts_each_unit_and_rates_its_exposure_ok(units: Path, name: str) -> None:
    ok = 49  # in tenths: "MEDIUM" begins at 5.0
    folder = units / "usr/lib/systemd/system"
    unit = str(folder / f"ftdash-{name}.service")

    verified = systemd_analyze(folder, "verify", "--man=no", unit)
    rated = systemd_analyze(folder, "security", "--offline=true", f"--threshold={ok}", unit)

    assert [line for line in verified.stderr.splitlines() if "ftdash" in line] == []
    assert rated.returncode == 0, rated.stdout[-300:]
