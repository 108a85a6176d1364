"""`ftdash prepare`: brings tables and static files to this version, before the services start."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ftdash.deployment.starting import go_back_to, prepare
from pipelines.domain.errors import Rejected


class Command(BaseCommand):
    help = (
        "Bring the tables and static files of this installation to this version, or back to those"
        " of the version that a backup was taken with."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        chosen = parser.add_mutually_exclusive_group()
        chosen.add_argument(
            "--new-key",
            action="store_true",
            help="accept another secret key than before: all people sign in again",
        )
        chosen.add_argument(
            "--as-in",
            metavar="BACKUP",
            type=Path,
            help="reverse the migrations that this backup does not have yet, before you install"
            " the version that it was taken with",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["as_in"] is None:
                prepare(takes_new_key=options["new_key"])
                return
            reversed_ones = go_back_to(options["as_in"].absolute())
        except Rejected as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal
        self.stdout.write(
            f"Reversed {len(reversed_ones)} migrations: {', '.join(reversed_ones) or 'none'}. Now"
            " install the version of that backup, and run its `ftdash prepare`."
        )
