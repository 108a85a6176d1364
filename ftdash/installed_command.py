"""Base classes and functions that the commands share.

Commands start quickly, require an installation, word a refusal, and hand the process over to a
program.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection

from pipelines.domain.errors import BrokenCode, Rejected

CURE_OF_DATABASE = "Start the server, or correct FTDASH_DATABASE_URL."


class QuickCommand(BaseCommand):
    """Skips Django's checks, which import every page and take two seconds. The tests run them."""

    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration


class InstalledCommand(QuickCommand):
    """Ends with a sentence and status 2 if nothing is installed.

    That happens, for example, if FTDASH_HOME does not name the intended home.
    """

    def execute(self, *args: Any, **options: Any) -> str | None:
        check_installed()
        return super().execute(*args, **options)


def check_installed() -> None:
    table = apps.get_model("jobs.Pipeline")._meta.db_table
    try:
        tables = connection.introspection.table_names()
    except DatabaseError as error:
        raise CommandError(
            f"The database does not answer: {first_line(error)} {CURE_OF_DATABASE}", returncode=2
        ) from error
    if table not in tables:
        is_given = bool(settings.DATABASE_URL)
        place = "the database of FTDASH_DATABASE_URL" if is_given else settings.FTDASH_HOME
        raise CommandError(
            f"There is no installation in {place}: let FTDASH_HOME name the home of one, as"
            " var/demo is that of the demonstration, or make one with `manage.py migrate`.",
            returncode=2,
        )


def first_line(error: Exception) -> str:
    """Returns the first line of the error's text as a sentence."""
    [line, *_] = str(error).strip().splitlines() or [type(error).__name__]
    return line if line.endswith((".", "?")) else f"{line}."


def explained(refusal: Rejected) -> str:
    """Returns the refusal's sentence, followed by the traceback if the author's code is broken."""
    if isinstance(refusal, BrokenCode):
        return f"{refusal}\n\n{refusal.traceback}"
    return str(refusal)


def run_program(module: str, options: Sequence[str]) -> NoReturn:
    """Replaces this process with the program, so that signals reach the program.

    Ctrl-C then ends a run in order, and no parent process stops waiting and kills it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(settings.BASE_DIR)
    os.execv(sys.executable, [sys.executable, "-m", module, *options])
