"""`ftdash serve NAME`: becomes one process of an installation, for its container or unit.

If the process cannot do its work, the command ends with exit status 2 and one line that says why
and what to do.
"""

import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from ftdash.deployment import doctor
from ftdash.deployment.starting import NAMES, obstacle
from ftdash.embedded.installation import DEFAULT_PORT, LOOPBACK
from ftdash.embedded.stack import control_plane
from ftdash.settings import LOG_JSON_VARIABLE


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
        name, host, port = options["name"], options["host"], options["port"]
        if (found := obstacle(name, host, port)) is not None:
            raise CommandError(f"{name} cannot start. {doctor.sentence(found)}", returncode=2)
        connections.close_all()
        [command] = [each.command for each in control_plane(port, host) if each.name == name]
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(command[0], command)  # signals reach the process itself
