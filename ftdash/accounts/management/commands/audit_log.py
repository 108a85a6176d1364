"""`ftdash audit-log verify`: checks that no entry of the audit log was changed or removed.

Prints the digest of the newest entry. Note it elsewhere, and give it to a later check with
`--noted`: that also finds entries that were cut off at the end, and a log that was rewritten. Names
requests to pipelines that have no entry. Exit status 1: the log was tampered with.
"""

import sys
from argparse import ArgumentParser
from typing import Any

import msgspec

from ftdash.accounts import queries
from ftdash.formats import plural
from ftdash.installed_command import InstalledCommand

UNLOGGED_SHOWN = 10


class Command(InstalledCommand):
    help = "Check that no entry of the audit log was changed or removed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        verify = actions.add_parser("verify", help="name the first entry that does not fit")
        verify.add_argument(
            "--noted", default="", metavar="DIGEST", help="which an earlier check printed"
        )
        verify.add_argument("--json", action="store_true", help="answer in JSON, for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        found = queries.verify_log(options["noted"])
        if options["json"]:
            self.stdout.write(msgspec.json.encode(found).decode())
        elif found.broken:
            self.stdout.write(
                f"{found.broken} The {plural(found.entries, 'entry', 'entries')} before it fit."
                " Compare the log with a backup."
            )
        elif not found.has_noted:
            self.stdout.write(
                "No entry has the digest that you noted: entries were cut off, or the log was"
                " rewritten. Compare it with a backup."
            )
        elif found.unlogged:
            self.stdout.write(
                f"{plural(len(found.unlogged), 'request has', 'requests have')} no entry:"
                f" {', '.join(found.unlogged[:UNLOGGED_SHOWN])}. They were not stored by ftdash, or"
                " by a version that does not log requests."
            )
        else:
            self.stdout.write(
                f"{plural(found.entries, 'entry', 'entries')} fit. Newest: {found.newest or 'none'}"
            )
        if not found.is_whole:
            sys.exit(1)
