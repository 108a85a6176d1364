"""Homes of installations after their first commands: with tables and static files.

Making one takes eight seconds of processor time. So the first process of a test run that needs one
makes it, and all of them copy it. `tests/integration/test_wheel.py`, `tests/web/test_backups.py`
and `demo --check` still begin with nothing.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MACHINE = "FTDASH_TESTS_MACHINE"
"""The variable with the directory that all processes of one test run share."""

KEPT_DATABASE = "FTDASH_TESTS_KEPT_DATABASE"
"""The variable with a migrated database file that outlives a test run. If the file is missing, the
tests make it."""

OF_ONE_INSTALLATION = ("secret_key", "installation_id")
COMMANDS = (
    ("migrate", "--no-input", "--verbosity=0", "--skip-checks"),
    ("collectstatic", "--no-input", "--verbosity=0", "--skip-checks"),
)


def new_home(home: Path) -> Path:
    """Fills `home`, which may exist, as `migrate` and `collectstatic` leave it.

    A process that first looks for a secret key and an id creates them.
    """
    if MACHINE not in os.environ:  # not a test
        _make(home)
        return home
    others = shutil.ignore_patterns(*OF_ONE_INSTALLATION)
    shutil.copytree(shared_home(), home, dirs_exist_ok=True, ignore=others)
    return home


def shared_home() -> Path:
    """Returns the home that all processes of this test run copy and never change."""
    shared = Path(os.environ[MACHINE])
    made = shared / "new-home"
    with (shared / "new-home.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _make(shared / "unfinished-home")
            (shared / "unfinished-home").rename(made)
    return made


def migrated_database() -> Path:
    """Returns the database of the shared home, or the kept one."""
    made = "ftdash.sqlite3"
    if not (kept := os.environ.get(KEPT_DATABASE)):
        return shared_home() / made
    if not Path(kept).exists():
        shutil.copyfile(shared_home() / made, kept)
    return Path(kept)


def without_documentation(home: Path) -> None:
    """Makes an installation in `home` find built documentation, so that it builds none."""
    from ftdash.documentation.site import current_site

    (home / "documentation" / current_site().name).mkdir(parents=True)


def make_tables() -> None:
    """Makes tables as the models are now, in this process's database if it is empty.

    The migrations take ten times as long, and `migrate` runs them for `new_home`. They also fill
    some tables and protect the audit log; this does neither.
    """
    from django.apps import apps
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection

    if connection.introspection.table_names():
        return
    settings.MIGRATION_MODULES = {each.label: None for each in apps.get_app_configs()}
    call_command("migrate", run_syncdb=True, verbosity=0, skip_checks=True)


def _make(home: Path) -> None:
    outside = {name: text for name, text in os.environ.items() if not name.startswith("FTDASH_")}
    given = {"FTDASH_HOME": str(home), "DJANGO_SETTINGS_MODULE": "ftdash.settings"}
    for command in COMMANDS:
        words = [sys.executable, "manage.py", *command]
        subprocess.run(words, cwd=ROOT, env={**outside, **given}, check=True)
