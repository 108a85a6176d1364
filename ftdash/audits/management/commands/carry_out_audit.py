"""`manage.py carry_out_audit KEY`: the process of an audit that a person requested on a page."""

from argparse import ArgumentParser
from typing import Any

from ftdash.audits import services as audit_process
from ftdash.installed_command import QuickCommand


class Command(QuickCommand):
    help = "Carry out an audit that was asked for on a page; people use `manage.py audit`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("key", type=int, help="of the audit's row")

    def handle(self, *args: Any, **options: Any) -> None:
        audit_process.carry_out(options["key"])
