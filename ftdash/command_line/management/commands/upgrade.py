"""`manage.py upgrade PIPELINE --to PACKAGE`: continue with other code, or fall back to the old.

A refusal ends in one sentence on standard error and exit status 2; with --wait, an upgrade that
fails or goes back ends with status 1.
"""

import getpass
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ftdash.command_line.management.commands import pipeline
from ftdash.installed_command import explained
from ftdash.jobs.validation import package_store
from ftdash.upgrades import services
from pipelines.domain.errors import Rejected


class Command(pipeline.Command):
    help = (
        "Stop a pipeline with a savepoint and continue from it with other code. If that fails, or"
        " does not complete its first checkpoints in time, the previous code continues."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="PIPELINE")
        parser.add_argument(
            "--to",
            required=True,
            metavar="PACKAGE",
            help="a wheel, a folder, or the sha256 of a package that was added",
        )
        parser.add_argument(
            "--allow-non-restored-state",
            action="store_true",
            help="leave behind state of operators that the new code no longer has",
        )
        parser.add_argument("--json", action="store_true", help="answer in JSON, for scripts")
        pipeline.add_request_options(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            request_id = services.upgrade(
                pipeline=options["name"],
                code=package_store().find(options["to"]),
                requester=getpass.getuser(),
                reason=options["reason"],
                allow_non_restored_state=options["allow_non_restored_state"],
                request_id=options["request_id"],
            )
            self.follow(request_id, options)
        except Rejected as refusal:
            raise CommandError(explained(refusal), returncode=2) from refusal
