"""`manage.py audit JOB`: read a pipeline's output again and compare it with the ledger.

Exit status 1: something differs. 2: no audit is possible, and standard error says why.
"""

from argparse import ArgumentParser
from typing import Any

import msgspec
from django.core.management.base import CommandError

from ftdash.audits import services
from ftdash.installed_command import InstalledCommand
from pipelines.bus.journal import JournalCutShort, UndecodableEvent
from pipelines.domain.errors import Rejected


class Command(InstalledCommand):
    help = "Check up to which checkpoint a pipeline's output matches its ledger."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("job", help="name of the pipeline")
        parser.add_argument("--run", metavar="RUN_ID", help="default: its newest run")
        parser.add_argument("--json", action="store_true", help="answer in JSON, for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        # These imports load Arrow and the flow, which other commands do not need.
        from pipelines.audit.auditor import audit
        from pipelines.audit.report import sentences

        try:
            report = audit(services.directory_of(options["job"], options["run"]))
        except (Rejected, UndecodableEvent, JournalCutShort) as problem:
            raise CommandError(str(problem), returncode=2) from problem
        if options["json"]:
            self.stdout.write(msgspec.json.encode(report).decode())
        else:
            self.stdout.write("\n".join(sentences(report)))
        if not report.is_as_recorded:
            raise CommandError("The output does not match the ledger.", returncode=1)
