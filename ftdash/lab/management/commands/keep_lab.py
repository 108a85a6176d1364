"""`manage.py keep_lab KEY`: the worker starts it for a lab that a person requested on the page."""

from argparse import ArgumentParser
from typing import Any

from ftdash.installed_command import QuickCommand
from ftdash.lab.services import keep


class Command(QuickCommand):
    help = "Run the lab of one row and keep its report there; the worker starts this by itself."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("key", type=int, help="of the row")

    def handle(self, *args: Any, **options: Any) -> None:
        keep(options["key"])
