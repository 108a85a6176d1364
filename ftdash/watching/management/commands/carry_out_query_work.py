"""`manage.py carry_out_query_work KEY`: the process of work that a person asked for on a page."""

from argparse import ArgumentParser
from typing import Any

from ftdash.installed_command import QuickCommand
from ftdash.watching.services import carrying_out


class Command(QuickCommand):
    help = "Carry out work on a query's files; people use `manage.py watch`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("key", type=int, help="of the work's row")

    def handle(self, *args: Any, **options: Any) -> None:
        carrying_out.carry_out(options["key"])
