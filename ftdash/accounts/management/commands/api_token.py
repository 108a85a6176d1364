"""`manage.py api_token create|revoke|list`: tokens for scripts, the `flink` command and monitors.

Prints the secret once, when it is made; a refusal ends with exit status 2.
"""

import getpass
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from ftdash.accounts import queries, services
from ftdash.accounts.models import TokenScope
from ftdash.installed_command import InstalledCommand
from pipelines.domain.errors import Rejected

DAYS = 90
"""The same default as on the settings page."""


class Command(InstalledCommand):
    help = "Create, revoke and list the tokens that open the API."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        create = actions.add_parser("create", help="make a token and print it, once")
        create.add_argument("name", help="who will use it; the audit log says this")
        create.add_argument(
            "--scope",
            choices=TokenScope.values,
            default=TokenScope.READ.value,
            help="; ".join(f"{scope.value}: {scope.label}" for scope in TokenScope),
        )
        expiry = create.add_mutually_exclusive_group()
        expiry.add_argument(
            "--days", type=int, default=DAYS, help="expires after this many (default: %(default)s)"
        )
        expiry.add_argument("--never-expires", action="store_true", help="until it is revoked")
        revoke = actions.add_parser("revoke", help="make the token invalid at once")
        revoke.add_argument("name")
        for changing in (create, revoke):
            changing.add_argument("--reason", default="from the command line", help="for the log")
        actions.add_parser("list", help="names, scopes, and when each was last used")

    def handle(self, *args: Any, **options: Any) -> None:
        who = getpass.getuser()
        try:
            match options["action"]:
                case "create":
                    self.stdout.write(self._created(who, options))
                case "revoke":
                    name, reason = options["name"], options["reason"]
                    services.revoke_token(name=name, revoked_by=who, reason=reason)
                case _:
                    self._list()
        except Rejected as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal

    def _created(self, who: str, options: dict[str, Any]) -> str:
        lasts = timedelta(days=options["days"])
        token = services.create_token(
            name=options["name"],
            scope=TokenScope(options["scope"]),
            created_by=who,
            reason=options["reason"],
            expires_at=None if options["never_expires"] else timezone.now() + lasts,
        )
        return token.secret

    def _list(self) -> None:
        for token in queries.tokens():
            used = f"{token.last_used_at:%Y-%m-%d %H:%M} UTC" if token.last_used_at else "never"
            state = f"revoked by {token.revoked_by}" if token.revoked_at else f"last used {used}"
            expiry = f"  expires {token.expires_at:%Y-%m-%d %H:%M} UTC" if token.expires_at else ""
            self.stdout.write(f"{token.name}  {token.scope.value}  {state}{expiry}")
