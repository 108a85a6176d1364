"""`manage.py docs`: build the documentation that the dashboard serves at /docs/."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from ftdash.documentation import site
from ftdash.installed_command import QuickCommand
from pipelines.domain.errors import Rejected


class Command(QuickCommand):
    help = "Build the documentation, which the dashboard then serves at /docs/."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--directory",
            type=Path,
            help="write the site here instead of into the home of the installation",
        )
        parser.add_argument(
            "--strict", action="store_true", help="fail on a broken link or a page without a place"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        directory: Path = options["directory"] or site.current_site()
        try:
            site.build(directory, is_strict=options["strict"])
        except Rejected as refusal:
            raise CommandError(str(refusal)) from refusal
        if options["directory"] is None:
            site.remove_others(directory)
        self.stdout.write(f"The documentation is in {directory}.")
