"""Shared fixtures of the page tests.

They provide static files without a build, a home for jobs, two users, and a browser with a live
dashboard.
"""

from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.utils import timezone

from ftdash import settings as installed
from tests.web.installations import Installation, Installations
from tests.web.people import admin_user, operator_user, signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.postgres_server import PostgresServer
    from tests.web.browser_site import Site

QUICK_HASH = "django.contrib.auth.hashers.MD5PasswordHasher"
PATIENCE_S = 60.0
PLAIN_STORAGE = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> None:
    """Lets Django delete all rows after a test with transactions of its own.

    The triggers of the audit log would refuse that.
    """
    from django.db import connection

    chain = import_module("ftdash.accounts.migrations.0008_factors_and_chain")
    operations = type(connection.ops)
    flush = operations.execute_sql_flush

    def flush_unprotected(self: Any, sql_list: list[str]) -> None:
        with connection.cursor() as cursor:
            for statement in chain.UNDO[connection.vendor]:
                cursor.execute(statement)
            flush(self, sql_list)
            for statement in chain.SQLITE:
                cursor.execute(statement)

    operations.execute_sql_flush = flush_unprotected


@pytest.fixture
def site(settings: Any, tmp_path: Path, db: None) -> Path:
    """Returns the root of the job directories; pages render without collected static files.

    Caches about runs of earlier tests with the same name are cleared.
    """
    from ftdash.checkpoints.queries import completed_history  # needs Django set up
    from ftdash.runs.queries import pulses
    from ftdash.ui.metrics import page as metrics_page

    completed_history.forget()
    metrics_page.past_of.cache_clear()
    pulses.forget()
    settings.STORAGES = {**settings.STORAGES, "staticfiles": PLAIN_STORAGE}
    settings.JOBS_ROOT = tmp_path
    settings.PASSWORD_HASHERS = [QUICK_HASH]  # the real one is slow on purpose
    return tmp_path


@pytest.fixture(autouse=True)
def asks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process ask authors' code itself, even after a test that began a server in it."""
    from ftdash.jobs import fresh_code

    monkeypatch.setattr(fresh_code, "_staying", [])


@pytest.fixture(autouse=True)
def patient(settings: Any) -> float:
    """Keeps recent signs of life fresh, however slow the machine is.

    Returns the number of seconds after which an installation considers a process silent.
    """
    settings.SILENT_AFTER_S = PATIENCE_S
    return installed.SILENT_AFTER_S


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """Stops Django's clock, at a whole millisecond, because reports have whole milliseconds."""
    now = timezone.now()
    now = now.replace(microsecond=now.microsecond // 1000 * 1000)
    monkeypatch.setattr(timezone, "now", lambda: now)
    return now


@pytest.fixture
def as_installed(patient: float, no_time_passes: datetime, settings: Any) -> datetime:
    """Uses the patience of an installation with a stopped clock, so that no test exceeds it."""
    settings.SILENT_AFTER_S = patient
    return no_time_passes


@pytest.fixture(params=["sqlite", "postgresql"])
def installations(request: pytest.FixtureRequest, tmp_path: Path, worker_id: str) -> Installations:
    """Returns a function that makes an empty installation for a name."""
    if request.param == "sqlite":
        return lambda name: Installation(tmp_path / name)
    server: PostgresServer = request.getfixturevalue("postgres")

    def empty(name: str) -> Installation:
        database = f"installation_{name}_{worker_id}"
        server.execute(f'drop database if exists "{database}"')
        server.execute(f'create database "{database}"')
        url = server.url.rpartition("/")[0] + f"/{database}"
        return Installation(tmp_path / name, url, Path(server.program("pg_dump")).parent)

    return empty


@pytest.fixture
def admin(site: Path) -> Client:
    return signed_in(admin_user())


@pytest.fixture
def operator(site: Path) -> Client:
    return signed_in(operator_user())


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Site"]:
    from tests.web.browser_site import simulated_dashboard

    with simulated_dashboard(tmp_path_factory.mktemp("home"), "--spare") as site:
        yield site


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A browser for whole modules.

    While it runs, nothing else in the process may use the database.
    """
    from tests.web.browser_site import chromium

    with chromium() as browser:
        yield browser
