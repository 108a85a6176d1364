"""`manage.py lab`: every mode through one input and one schedule of faults, side by side.

Exit status 0: every mode kept what it promises. 1: one did not. 2: the lab could not be run.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from django.core.management.base import CommandError

from ftdash.installed_command import QuickCommand, run_program
from pipelines.domain.errors import Rejected
from pipelines.lab.options import add_options, options_of


class Command(QuickCommand):
    help = (
        "Run one page-view count under every mode, with kill -9 of slots at the same places of the"
        " same input, on real slots without Spark. Prints, per mode: views lost and doubled;"
        " latency from when a view happened, by the input's rate, until a reader could see it, so"
        " that an outage counts; time from a kill until all subtasks ran again; views read again;"
        " and, of a run without faults, views a second and the barriers and acks that were sent."
        " Exit status 1: a mode broke what it promises. 2: the lab could not be run."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="answer in JSON, for scripts")
        add_options(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            chosen = options_of(Namespace(**options))
        except Rejected as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal
        run_program("pipelines.lab", [*chosen.words, *(["--json"] if options["json"] else [])])
