"""What commands share: a quick start, the need of an installation, and the text of a refusal."""

import os
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from pipelines.domain.errors import BrokenCode, Rejected


class QuickCommand(BaseCommand):
    """Begins without Django's checks, which import every page: two seconds. The tests run them."""

    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration


class InstalledCommand(QuickCommand):
    """Ends with a sentence and status 2 if nothing is installed, for example if the intended home
    was not named."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        check_installed()
        return super().execute(*args, **options)


def check_installed() -> None:
    table = apps.get_model("jobs.Pipeline")._meta.db_table
    if table not in connection.introspection.table_names():
        is_given = "FTDASH_DATABASE_URL" in os.environ
        place = "the database of FTDASH_DATABASE_URL" if is_given else settings.FTDASH_HOME
        raise CommandError(
            f"There is no installation in {place}: let FTDASH_HOME name the home of one, as"
            " var/demo is that of the demonstration, or make one with `manage.py migrate`.",
            returncode=2,
        )


def explained(refusal: Rejected) -> str:
    """The sentence; below it, where in the author's code it comes from."""
    if isinstance(refusal, BrokenCode):
        return f"{refusal}\n\n{refusal.traceback}"
    return str(refusal)
