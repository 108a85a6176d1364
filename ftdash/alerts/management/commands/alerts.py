"""`manage.py alerts list|acknowledge|silence|silences|end-silence`: alerts without a browser.

Uses the same services as the pages. A refusal ends in one sentence and exit status 2.
"""

import getpass
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

import msgspec
from django.core.management.base import CommandError
from django.utils import timezone

from ftdash.alerts import queries, services
from ftdash.alerts.queries import AlertView, SilenceView
from ftdash.formats import utc
from ftdash.installed_command import InstalledCommand
from pipelines.domain.errors import Rejected

MINUTES_MAX = 1_000_000
"""More than the service accepts; larger numbers give no valid date."""


class Command(InstalledCommand):
    help = "List alerts, acknowledge them, and silence their messages for a while."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        shown = actions.add_parser("list", help="the alerts that fire, and their incidents")
        acknowledge = actions.add_parser("acknowledge", help="say that you are looking into it")
        acknowledge.add_argument("key", type=int, help="of the alert; `list` shows it")
        silence = actions.add_parser(
            "silence", help="send no message for a while; the pages show the alerts all the time"
        )
        silence.add_argument("--rule", help="only its alerts (default: all rules)")
        silence.add_argument("--pipeline", help="only its alerts (default: all pipelines)")
        silence.add_argument("--query", help="only the incidents of this watched query")
        silence.add_argument("--flink-cluster", help="only the incidents of this one and its jobs")
        silence.add_argument("--minutes", type=int, required=True, help="how long it lasts")
        ending = actions.add_parser("end-silence", help="end a silence before its time")
        ending.add_argument("key", type=int, help="of the silence; `silences` shows it")
        for changing in (acknowledge, silence, ending):
            changing.add_argument("--reason", required=True, help="kept in the audit log")
        listed = actions.add_parser("silences", help="what is silenced, by whom, why, until when")
        for reading in (shown, listed):
            reading.add_argument("--json", action="store_true", help="answer in JSON, for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._carry_out(getpass.getuser(), options)
        except Rejected as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal

    def _carry_out(self, who: str, options: dict[str, Any]) -> None:
        match options["action"]:
            case "list":
                self._write(queries.firing(), _alert_line, options["json"])
            case "silences":
                self._write(queries.silences(), _silence_line, options["json"])
            case "acknowledge":
                services.acknowledge(alert=options["key"], requester=who, reason=options["reason"])
            case "silence":
                key = services.make_silence(
                    rule=options["rule"],
                    pipeline=options["pipeline"],
                    query=options["query"],
                    flink_cluster=options["flink_cluster"],
                    until=timezone.now() + timedelta(minutes=min(options["minutes"], MINUTES_MAX)),
                    requester=who,
                    reason=options["reason"],
                )
                self.stdout.write(f"Silence {key}.")
            case _:
                services.end_silence(key=options["key"], requester=who, reason=options["reason"])

    def _write(self, rows: list[Any], line: Any, as_json: bool) -> None:
        if as_json:
            self.stdout.write(msgspec.json.encode(rows).decode())
            return
        for row in rows:
            self.stdout.write(line(row))


def _alert_line(alert: AlertView) -> str:
    incident = f"  Incident {alert.incident.key}: {alert.incident.title}" if alert.incident else ""
    silence = f"  silenced until {utc(alert.silence.until)}" if alert.silence else ""
    by = f"  acknowledged by {alert.acknowledged_by}" if alert.acknowledged_by else ""
    return f"{alert.key}  {alert.pipeline}: {alert.rule}. {alert.sentence}{by}{silence}{incident}"


def _silence_line(silence: SilenceView) -> str:
    state = f"until {utc(silence.until)}" if silence.is_on else "over"
    what = f"{silence.what} for {silence.place}"
    return f"{silence.key}  {what}  {state}, by {silence.created_by}: {silence.reason}"
