"""Homes of installations as they are after their first commands: with tables and static files.

To make one takes eight seconds of the processor, so the tests of one run make it once, in whichever
of its processes wants it first, and copy it. `tests/integration/test_wheel.py`,
`tests/web/test_backups.py` and `demo --check` still begin with nothing.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MACHINE = "FTDASH_TESTS_MACHINE"
"""Names the directory that all processes of one run of the tests share."""

KEPT_DATABASE = "FTDASH_TESTS_KEPT_DATABASE"
"""Names a file of the database of the tests' own process: they begin with what it holds, instead of
running the migrations. If it is not there, they write into it what those have made."""

OF_ONE_INSTALLATION = ("secret_key", "installation_id")
COMMANDS = (
    ("migrate", "--no-input", "--verbosity=0", "--skip-checks"),
    ("collectstatic", "--no-input", "--verbosity=0", "--skip-checks"),
)


def new_home(home: Path) -> Path:
    """`home`, which may be there, as `migrate` and `collectstatic` leave it. It gets a secret key
    and an id of its own when a process first looks for them."""
    if MACHINE not in os.environ:  # not a test
        _make(home)
        return home
    shared = Path(os.environ[MACHINE])
    made = shared / "new-home"
    with (shared / "new-home.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _make(shared / "unfinished-home")
            (shared / "unfinished-home").rename(made)
    others = shutil.ignore_patterns(*OF_ONE_INSTALLATION)
    shutil.copytree(made, home, dirs_exist_ok=True, ignore=others)
    return home


def without_documentation(home: Path) -> None:
    """An installation in `home` finds the documentation built, so that it builds none."""
    from ftdash.documentation.site import current_site

    (home / "documentation" / current_site().name).mkdir(parents=True)


def _make(home: Path) -> None:
    outside = {name: text for name, text in os.environ.items() if not name.startswith("FTDASH_")}
    given = {"FTDASH_HOME": str(home), "DJANGO_SETTINGS_MODULE": "ftdash.settings"}
    for command in COMMANDS:
        words = [sys.executable, "manage.py", *command]
        subprocess.run(words, cwd=ROOT, env={**outside, **given}, check=True)
