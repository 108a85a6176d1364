"""What the tests of pages share: static files without a build, a home for jobs, two people, and a
browser before a dashboard that lives."""

from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.utils import timezone

from ftdash import settings as installed
from tests.web.people import admin_user, operator_user, signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.web.browser_site import Site

QUICK_HASH = "django.contrib.auth.hashers.MD5PasswordHasher"
PATIENCE_S = 60.0
PLAIN_STORAGE = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> None:
    """After a test with transactions of its own, Django deletes all rows; the triggers of the audit
    log would refuse that."""
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
    """The root of the job directories; pages render without collected static files. Nothing is
    known yet of a run whose name another test has used."""
    from ftdash.checkpoints.queries import completed_history  # models: only once Django is set up
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
    """This process asks an author's code itself, also after a test that began a server in it."""
    from ftdash.jobs import fresh_code

    monkeypatch.setattr(fresh_code, "_staying", [])


@pytest.fixture(autouse=True)
def patient(settings: Any) -> float:
    """What was just heard of stays fresh, however slow the machine is. Gives after how many seconds
    a process of an installation is silent."""
    settings.SILENT_AFTER_S = PATIENCE_S
    return installed.SILENT_AFTER_S


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """For all that asks Django what time it is. Reports have whole milliseconds, so it has too."""
    now = timezone.now()
    now = now.replace(microsecond=now.microsecond // 1000 * 1000)
    monkeypatch.setattr(timezone, "now", lambda: now)
    return now


@pytest.fixture
def as_installed(patient: float, no_time_passes: datetime, settings: Any) -> datetime:
    """With the patience of an installation, and no time to lose it in."""
    settings.SILENT_AFTER_S = patient
    return no_time_passes


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
    """For a module only: while it is there, nothing else in the process may use the database."""
    from tests.web.browser_site import chromium

    with chromium() as browser:
        yield browser
