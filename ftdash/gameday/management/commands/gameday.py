"""`manage.py gameday`: a fault on purpose in a pipeline that allows it, followed to its verdict.

Exit status 0: it passed. 1: it failed, was not proven, or did not happen. 2: it was refused.
"""

import getpass
import time
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

import msgspec
from django.core.management.base import CommandError
from django.utils import timezone

from ftdash.gameday import queries, services
from ftdash.gameday.models import Fault, GameDayVerdict
from ftdash.gameday.queries import GameDayView
from ftdash.gameday.scoring import AUDIT_WITHIN, EFFECT_WITHIN, RECOVERY_WITHIN
from ftdash.installed_command import InstalledCommand
from pipelines.domain.errors import InvariantViolated, Rejected

POLL_S = 0.5
PATIENCE = EFFECT_WITHIN + RECOVERY_WITHIN + AUDIT_WITHIN + timedelta(seconds=60)
"""By then a worker has ended the game day, if one runs."""

FAULTS = {fault.value.lower().replace("_", "-"): fault for fault in Fault}


class Command(InstalledCommand):
    help = (
        "Inject a fault into a running pipeline that allows faults, wait until it has recovered,"
        " audit its output against the ledger, and print the verdict with the measurements. With"
        " --list, print the newest game days. Exit status 1: it did not pass. 2: it was refused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("pipeline", nargs="?")
        parser.add_argument("fault", nargs="?", choices=sorted(FAULTS))
        parser.add_argument("--slot", type=int, default=0, help="where the fault hits one")
        parser.add_argument("--reason", default="asked on the command line", help="is kept")
        parser.add_argument("--list", action="store_true", help="begin nothing")
        parser.add_argument("--json", action="store_true", help="answer in JSON, for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["list"]:
            self._show(queries.game_days(options["pipeline"]).days, options["json"])
            return
        if not options["pipeline"] or not options["fault"]:
            raise CommandError("Name a pipeline and a fault, or --list.", returncode=2)
        try:
            day = self._followed(_begun(options), is_shown=not options["json"])
        except Rejected as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal
        self._show([day], options["json"])
        if day.verdict is not GameDayVerdict.PASSED:
            raise CommandError(f"{day.verdict_label or 'no verdict'}: {day.why}", returncode=1)

    def _followed(self, key: int, *, is_shown: bool) -> GameDayView:
        give_up_at = timezone.now() + PATIENCE
        said = ""
        while (day := _day(key)).is_under_way and timezone.now() < give_up_at:
            step = f"{day.state_label}. {day.why}".strip()
            if is_shown and step != said:
                self.stderr.write(step)
                said = step
            time.sleep(POLL_S)
        return day

    def _show(self, days: list[GameDayView], as_json: bool) -> None:
        if as_json:
            self.stdout.write(msgspec.json.encode(days).decode())
            return
        for day in days:
            measured = {
                "detection_ms": day.measures.detection_ms,
                "recovery_ms": day.measures.recovery_ms,
                "records_replayed": day.measures.records_replayed,
            }
            figures = "  ".join(f"{name}={value}" for name, value in measured.items() if value)
            outcome = day.verdict_label or day.state_label
            self.stdout.write(
                f"{day.key}  {day.pipeline}  {day.fault_label}  {outcome}: {day.why}  {figures}"
            )


def _begun(options: dict[str, Any]) -> int:
    return services.start_game_day(
        pipeline=options["pipeline"],
        fault=FAULTS[options["fault"]],
        slot=options["slot"],
        requester=getpass.getuser(),
        reason=options["reason"],
    )


def _day(key: int) -> GameDayView:
    found = queries.game_day(key)
    if found is None:
        raise InvariantViolated("what was stored can be read")
    return found
