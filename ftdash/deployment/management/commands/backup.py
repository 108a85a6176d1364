"""`ftdash backup FILE`: copies the control plane into one file while it runs."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from ftdash.deployment.backups import write_backup
from ftdash.formats import size
from ftdash.installed_command import QuickCommand
from pipelines.domain.errors import Rejected


class Command(QuickCommand):
    help = (
        "Copy the database, secret key and id of this installation into one new file, while it"
        " runs. Journals, checkpoints and packages stay in the job directory."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        path = options["file"].absolute()
        try:
            write_backup(path)
        except Rejected as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal
        self.stdout.write(
            f"Wrote {path}, {size(path.stat().st_size)}. It holds the secret key: keep it private."
        )
