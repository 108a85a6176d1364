"""`ftdash carry_out WORK KEY`: the process that does the work a person asked for on a page."""

from argparse import ArgumentParser
from typing import Any

from django.utils.module_loading import import_string

from ftdash.installed_command import QuickCommand
from ftdash.jobs import fresh_code

WORKS = {
    "audit": "ftdash.audits.services.carry_out",
    "lab": "ftdash.lab.services.keep",
    "query-work": "ftdash.watching.services.execution.carry_out",
    "upgrade-check": "ftdash.upgrades.services.check",
}
"""Import paths, so that the command loads only the work that it carries out."""


class Command(QuickCommand):
    help = (
        "Carry out what was asked for on a page: the worker starts this by itself. People use"
        " `audit`, `lab`, `watch` and `upgrade`."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("work", choices=sorted(WORKS))
        parser.add_argument("key", type=int, help="of the work's row")

    def handle(self, *args: Any, **options: Any) -> None:
        fresh_code.stay()  # this process has the secrets of the worker that started it
        import_string(WORKS[options["work"]])(options["key"])
