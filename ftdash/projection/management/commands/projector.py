"""`manage.py projector`: folds the journals of all runs into rows until it is asked to end."""

import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from ftdash.installed_command import InstalledCommand
from ftdash.projection.projector import Projector, rebuild, run_named
from pipelines.bus.announce import NewsWaiter

PAUSE_AFTER_NEWS_S = 0.1
"""Events within this time are folded together, in one transaction per run."""


class Command(InstalledCommand):
    help = "Fold the journals of all runs into rows: one process of an installation, for ever."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--rebuild", metavar="RUN_ID", help="rebuild the rows of one run, then exit"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["rebuild"]:
            _rebuild(options["rebuild"])
            return
        is_ending = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: is_ending.set())
        _run_until(is_ending)


def _run_until(is_ending: threading.Event) -> None:
    projector = Projector()
    waiter = NewsWaiter(settings.REDIS_URL, longest_wait_ms=settings.PROJECTOR_POLL_MS)
    while not is_ending.is_set():
        if projector.run_once():
            is_ending.wait(PAUSE_AFTER_NEWS_S)
        else:
            waiter.wait_for_news(settings.PROJECTOR_POLL_MS)
    waiter.close()


def _rebuild(run_id: str) -> None:
    run = run_named(run_id)
    if run is None:
        raise CommandError(f"There is no run {run_id}.", returncode=2)
    rebuild(run)
