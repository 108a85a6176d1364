"""`manage.py demo`: a whole installation on one machine, for a person or, with --check, a test."""

import json
import os
import shutil
import sys
import tempfile
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ftdash.embedded import demo, installation, page_views
from ftdash.embedded.check import run_check
from ftdash.embedded.checked import checked
from ftdash.embedded.demo import Demonstration, DemoOptions, FlightDelays, run_demo
from ftdash.embedded.installation import DEFAULT_PORT
from ftdash.embedded.outcome import Console, end_when_asked
from ftdash.embedded.page_views import VIEWS_PER_S, PageViews
from ftdash.embedded.supervisor import LEDGER_NAME, Ledger, new_mark
from pipelines.domain.errors import Rejected
from pipelines.flows.page_view_variables import DATABASE, KAFKA, KAFKA_SECURITY, REDIS

EVENT_HOURS_PER_S = 24.0
VIEWS_PER_S_MAX = 5_000.0
"""At a higher rate the streams would not hold the views of the last minutes."""

HELP = f"""Run everything on this machine, on loopback: Redis, worker, projector, web server and a
pipeline on Spark. Ctrl-C ends it and leaves no process behind.

--pipeline flight_delays replays the flights of 2013 into files and a table. --pipeline page_views
counts made-up page views per app: from and into a Redis of its own, and into files. What these
variables of the environment name is used as well; their values are shown and stored nowhere:

  {REDIS}       views and counts are there, in the place of a Redis of our own
  {DATABASE}    counts go into that PostgreSQL too
  {KAFKA}           views come from these Kafka brokers, and counts go to them too
  {KAFKA_SECURITY}  a JSON object: security.protocol, sasl.* and ssl.* of librdkafka

Started again with the same --home it continues: the same database, accounts and pipeline, whose
driver resumes from its latest checkpoint. --fresh deletes that home first and starts from nothing.
"""


class Formatted(RawDescriptionHelpFormatter):
    """Keeps the paragraphs of the help text."""


class Command(BaseCommand):
    help = HELP
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=Formatted, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--home",
            type=Path,
            help="directory of everything that is written (default: var/demo; with --check: a new"
            " temporary directory, which is kept)",
        )
        parser.add_argument("--fresh", action="store_true", help="delete that home first")
        parser.add_argument(
            "--port", type=int, default=DEFAULT_PORT, help="of the dashboard, or a free one"
        )
        parser.add_argument(
            "--pipeline",
            choices=(demo.NAME, page_views.NAME),
            default=demo.NAME,
            help="which one to run (default: %(default)s)",
        )
        parser.add_argument(
            "--speed",
            type=float,
            help=f"flight_delays: event-hours replayed per second (default: {EVENT_HOURS_PER_S:g})",
        )
        parser.add_argument(
            "--views-per-s",
            type=float,
            help=f"page_views: views made per second (default: {VIEWS_PER_S:g})",
        )
        parser.add_argument(
            "--new-passwords", action="store_true", help="give admin and operator new ones"
        )
        parser.add_argument(
            "--check",
            action="store_true",
            help="without a person: run one year, or some thousand views, kill slots and the"
            " driver, take a savepoint, restore at another parallelism and compare what each sink"
            " holds with an answer that was computed in another way",
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help="with --check: one JSON object as the last line of standard output",
        )

    def handle(self, *args: object, **options: Any) -> None:
        check_together(options)
        if not installation.is_entered():
            end_when_asked()  # also while Django loads again
            installation.reenter(prepared_home(options))
        end_when_asked()
        try:
            sys.exit(check(options) if options["check"] else demonstrate(options))
        except Rejected as refusal:
            raise CommandError(str(refusal)) from refusal
        except KeyboardInterrupt:
            raise CommandError("Ended before it was done.", returncode=130) from None


def prepared_home(options: dict[str, Any]) -> Path:
    if options["home"] is None and options["check"]:
        return Path(tempfile.mkdtemp(prefix="ftdash-check-"))
    home: Path = (options["home"] or settings.BASE_DIR / "var" / "demo").absolute()
    if options["fresh"] and home.exists():
        delete_home(home)
    if options["check"] and home.exists() and any(home.iterdir()):
        raise CommandError(f"{home} is not empty; --check needs a new home, or --fresh.")
    return home


def delete_home(home: Path) -> None:
    """Raises CommandError if no demonstration made the directory, or if it is in use."""
    ledger = home / LEDGER_NAME
    if any(home.iterdir()) and not ledger.is_file():
        raise CommandError(f"{home} is not the home of a demonstration and is not deleted.")
    try:
        Ledger(ledger, new_mark()).close()
    except Rejected as refusal:
        raise CommandError(str(refusal)) from refusal
    shutil.rmtree(home)


def check_together(options: dict[str, Any]) -> None:
    """Raises CommandError for options that exclude each other, or an invalid pace."""
    is_views = options["pipeline"] == page_views.NAME
    if options["check"] and options["views_per_s"] is not None:
        raise CommandError("--check has a pace of its own; leave out --views-per-s.")
    if options["speed"] is not None and is_views:
        raise CommandError("--speed is that of flight_delays; give --views-per-s.")
    if options["views_per_s"] is not None and not is_views:
        raise CommandError("--views-per-s is the pace of page_views; add --pipeline page_views.")
    if options["views_per_s"] is not None and not 0 < options["views_per_s"] <= VIEWS_PER_S_MAX:
        raise CommandError(f"--views-per-s must be above 0, and at most {VIEWS_PER_S_MAX:,}.")


def demonstrate(options: dict[str, Any]) -> int:
    known: list[Demonstration] = [
        FlightDelays(EVENT_HOURS_PER_S if options["speed"] is None else options["speed"]),
        PageViews(options["views_per_s"] or VIEWS_PER_S),
    ]
    others = [each for each in known if each.name != options["pipeline"]]
    [chosen] = [each for each in known if each.name == options["pipeline"]]
    run_demo(
        DemoOptions(options["port"], options["new_passwords"], chosen, others), Console(sys.stdout)
    )
    return os.EX_OK


def check(options: dict[str, Any]) -> int:
    outcome = run_check(Console(sys.stderr), checked(options["pipeline"]))
    print(json.dumps(outcome.as_json()) if options["json"] else outcome.as_text(), flush=True)
    return os.EX_OK if outcome.is_exact else 1
