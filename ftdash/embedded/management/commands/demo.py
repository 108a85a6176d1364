"""`manage.py demo`: a whole installation on one machine, for a person or, with --check, without."""

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

from ftdash.embedded import installation
from ftdash.embedded.check import run_check
from ftdash.embedded.console import Console
from ftdash.embedded.demo import DemoOptions, run_demo
from ftdash.embedded.ledger import Ledger, new_token
from ftdash.embedded.opening import LEDGER_NAME
from ftdash.embedded.signals import end_when_asked
from pipelines.domain.errors import Rejected

DEFAULT_PORT = 8000
EVENT_HOURS_PER_S = 24.0

HELP = """Run everything on this machine, on loopback: Redis, worker, projector, web server and the
pipeline flight_delays on Spark. Ctrl-C ends it and leaves no process behind.

Started again with the same --home it continues: the same database, accounts and pipeline, whose
driver resumes from its latest checkpoint. --fresh deletes that home first and begins anew.
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
            "--speed",
            type=float,
            default=EVENT_HOURS_PER_S,
            help="event-hours replayed per second (default: %(default)g)",
        )
        parser.add_argument(
            "--new-passwords", action="store_true", help="give admin and operator new ones"
        )
        parser.add_argument(
            "--check",
            action="store_true",
            help="without a person: run one year, kill slots and the driver, take a savepoint,"
            " restore it at another parallelism and compare the output with a batch query",
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help="with --check: one JSON object as the last line of standard output",
        )

    def handle(self, *args: object, **options: Any) -> None:
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
    """Raises CommandError for a directory that no demonstration has made, or that is in use."""
    ledger = home / LEDGER_NAME
    if any(home.iterdir()) and not ledger.is_file():
        raise CommandError(f"{home} is not the home of a demonstration and is not deleted.")
    try:
        Ledger(ledger, new_token()).close()
    except Rejected as refusal:
        raise CommandError(str(refusal)) from refusal
    shutil.rmtree(home)


def demonstrate(options: dict[str, Any]) -> int:
    chosen = DemoOptions(options["port"], options["speed"], options["new_passwords"])
    run_demo(chosen, Console(sys.stdout))
    return os.EX_OK


def check(options: dict[str, Any]) -> int:
    outcome = run_check(Console(sys.stderr))
    print(json.dumps(outcome.as_json()) if options["json"] else outcome.as_text(), flush=True)
    return os.EX_OK if outcome.is_exact else 1
