"""`manage.py carry_out_upgrade_check KEY`: the process that holds new code against a pipeline."""

from argparse import ArgumentParser
from typing import Any

from ftdash.installed_command import QuickCommand
from ftdash.upgrades import services


class Command(QuickCommand):
    help = "Check the code of an upgrade; people use `manage.py upgrade`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("key", type=int, help="of the upgrade's row")

    def handle(self, *args: Any, **options: Any) -> None:
        services.check(options["key"])
