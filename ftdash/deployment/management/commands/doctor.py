"""`ftdash doctor`: checks this installation, and says how to cure each problem.

Exit status 0: all is well, or there are warnings; 1: something is broken.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import IO, Any, cast

import msgspec
from django.core.management.base import BaseCommand
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ftdash.command_line.tables import WIDTH_OF_FILES
from ftdash.deployment.doctor import Diagnosis, PartState, examine

STYLES = {PartState.WELL: "green", PartState.WARNING: "yellow", PartState.BROKEN: "bold red"}


class Command(BaseCommand):
    help = "Check this installation: home, database, Redis, services, Java. Changes nothing."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="answer in JSON, for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["json"]:
            found = list(examine())
            self.stdout.write(msgspec.json.encode(found).decode())
        else:
            found = list(self._shown(examine()))
        if any(each.verdict is PartState.BROKEN for each in found):
            sys.exit(1)

    def _shown(self, examined: Iterator[Diagnosis]) -> Iterator[Diagnosis]:
        """Shows each part at once, because a server that does not answer takes seconds."""
        width = None if self.stdout.isatty() else WIDTH_OF_FILES
        console = Console(file=cast(IO[str], self.stdout), width=width, highlight=False)
        table = Table("part", "verdict", "finding and cure", box=None, padding=(0, 2, 0, 0))
        with Live(table, console=console, auto_refresh=False) as shown:
            for each in examined:
                text = f"{each.finding}\n{each.cure}" if each.cure else each.finding
                table.add_row(each.part, Text(each.verdict, STYLES[each.verdict]), Text(text))
                shown.refresh()
                yield each
