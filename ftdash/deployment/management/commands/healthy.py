"""`ftdash healthy NAME`: ends with status 0 if that process works. For health checks of containers.

Judges as `ftdash doctor` does. The web server has `ftdash.deployment.probe`.
"""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ftdash.deployment import doctor
from ftdash.runs.queries.freshness import observe

NAMES = ("worker", "beat", "projector")


class Command(BaseCommand):
    help = "End with status 0 if the named process of this installation works, with 1 if not."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", choices=NAMES, help="of the process")

    def handle(self, *args: Any, **options: Any) -> None:
        if (found := doctor.database()).verdict is doctor.PartState.BROKEN:
            pass
        elif options["name"] == "worker":
            found = doctor.worker()
        elif options["name"] == "beat":
            found = doctor.beat(observe().reconcile)
        else:
            found = doctor.projector(observe().projector)
        if found.verdict is doctor.PartState.BROKEN:
            raise CommandError(f"{found.finding} {found.cure}", returncode=1)
        self.stdout.write(found.finding)
