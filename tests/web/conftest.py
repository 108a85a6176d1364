"""What the tests of pages share: static files without a build, a home for jobs, two people, and a
browser before a dashboard that lives."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client

from tests.web.people import admin_user, operator_user, signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.web.browser_site import Site

QUICK_HASH = "django.contrib.auth.hashers.MD5PasswordHasher"
PLAIN_STORAGE = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}


@pytest.fixture
def site(settings: Any, tmp_path: Path, db: None) -> Path:
    """The root of the job directories; pages render without collected static files."""
    settings.STORAGES = {**settings.STORAGES, "staticfiles": PLAIN_STORAGE}
    settings.JOBS_ROOT = tmp_path
    settings.PASSWORD_HASHERS = [QUICK_HASH]  # the real one is slow on purpose
    from ftdash.checkpoints import completed_history  # models: only once Django is set up

    completed_history.forget()  # the runs of another test have the same names
    return tmp_path


@pytest.fixture
def patient(settings: Any) -> None:
    """What was just heard of stays fresh, however slow the machine is."""
    settings.STALE_AFTER_S = 60.0


@pytest.fixture
def admin(site: Path) -> Client:
    return signed_in(admin_user())


@pytest.fixture
def operator(site: Path) -> Client:
    return signed_in(operator_user())


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Site"]:
    from tests.web.browser_site import simulated_dashboard

    with simulated_dashboard(tmp_path_factory.mktemp("home")) as site:
        yield site


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """For a module only: while it is there, nothing else in the process may use the database."""
    from tests.web.browser_site import chromium

    with chromium() as browser:
        yield browser
