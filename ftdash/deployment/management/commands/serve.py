"""`ftdash serve NAME`: becomes one process of an installation, for its container or unit."""

import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from ftdash.embedded.installation import LOOPBACK
from ftdash.embedded.management.commands.demo import DEFAULT_PORT
from ftdash.embedded.stack import control_plane
from ftdash.settings import LOG_JSON_VARIABLE

NAMES = ("web", "worker", "beat", "projector")


class Command(BaseCommand):
    help = "Run one process of an installation: the web server, worker, beat or projector."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", choices=NAMES, help="of the process")
        parser.add_argument("--host", default=LOOPBACK, help="web listens on it (%(default)s)")
        parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="of web (%(default)s)")
        parser.add_argument(
            "--json", action="store_true", help=f"log lines are JSON, as with {LOG_JSON_VARIABLE}=1"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["json"]:
            os.environ[LOG_JSON_VARIABLE] = "1"
        services = control_plane(options["port"], options["host"])
        [command] = [each.command for each in services if each.name == options["name"]]
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(command[0], command)  # signals reach the process itself
