"""`ftdash prepare`: brings tables and static files to this version, before the services start."""

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Bring the tables and static files of this installation to this version."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", interactive=False)
        call_command("collectstatic", interactive=False, verbosity=0)
