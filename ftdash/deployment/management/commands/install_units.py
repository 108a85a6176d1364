"""`ftdash install_units`: writes what systemd needs to run an installation; starts nothing."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ftdash.deployment.units import ENVIRONMENT, Server, install
from ftdash.embedded.installation import DEFAULT_PORT
from pipelines.domain.errors import Rejected


class Command(BaseCommand):
    help = "Write systemd units for the web server, worker, beat and projector of this server."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--account", default="ftdash", help="that runs them (%(default)s)")
        parser.add_argument(
            "--home", type=Path, default=Path("/var/lib/ftdash"), help="FTDASH_HOME (%(default)s)"
        )
        parser.add_argument(
            "--port", type=int, default=DEFAULT_PORT, help="of the web server, on loopback"
        )
        parser.add_argument(
            "--root", type=Path, default=Path("/"), help="write below this folder (%(default)s)"
        )
        parser.add_argument(
            "--replace", action="store_true", help="replace units whose text differs"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        server = Server(account=options["account"], home=options["home"], port=options["port"])
        try:
            written = install(server, options["root"], options["replace"])
        except Rejected as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal
        except PermissionError as refusal:
            raise CommandError(
                f"{refusal.filename} cannot be written: run this as root, or give --root.",
                returncode=2,
            ) from refusal
        for each in written:
            self.stdout.write(f"wrote {options['root'] / each.path}")
        self.stdout.write(
            f"Next: `systemd-sysusers`, `install -d -o {server.account} -g {server.account} -m 700"
            f" {server.home}`, edit /{ENVIRONMENT}, then `systemctl daemon-reload` and"
            " `systemctl enable --now ftdash.target`; `ftdash doctor` checks the result."
        )
