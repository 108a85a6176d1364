"""`ftdash restore FILE`: fills an empty installation from a backup."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from ftdash.deployment.backups import restore_backup
from ftdash.formats import utc
from pipelines.domain.errors import Rejected


class Command(BaseCommand):
    help = (
        "Fill an empty installation from a file of `ftdash backup`. To restore a pipeline to a"
        " savepoint, use `ftdash pipeline restore`."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            manifest = restore_backup(options["file"].absolute())
        except Rejected as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal
        self.stdout.write(
            f"Restored the installation as it was at {utc(manifest.made_at)}. It takes itself for"
            f" that one: make sure the other is off, and that {settings.JOBS_ROOT} holds its job"
            " directory, before you start the services. The projector then reads what is newer."
        )
