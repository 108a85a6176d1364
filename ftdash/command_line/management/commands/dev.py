"""`ftdash dev package.module:NAME`: runs a pipeline here, shows it, and follows its code."""

import signal
import threading
from argparse import ArgumentParser
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from ftdash.command_line.development import HOST, AuthorFiles, AuthorProcess, served
from pipelines.domain.errors import Rejected
from pipelines.local.view import Task

PERIOD_S = 0.3
INTERVAL_KEY = "execution.checkpointing.interval"


class Command(BaseCommand):
    help = (
        "Run a pipeline in one process, with a page that shows it. A change of its code takes a"
        " savepoint and starts the new code from it."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("flow", metavar="package.module:NAME", help="the pipeline")
        parser.add_argument("--port", type=int, default=8090, help="of the page; 0: any free one")
        parser.add_argument("--parallelism", type=int, default=1)
        parser.add_argument(
            "--parameter", action="append", default=[], metavar="NAME=VALUE", help="of the flow"
        )
        parser.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="setting"
        )
        parser.add_argument(
            "--directory",
            help="where checkpoints and savepoints are kept (default: FTDASH_HOME/dev)",
        )
        parser.add_argument("--restore-from", metavar="PATH", help="a savepoint in that directory")
        parser.add_argument(
            "--allow-non-restored-state",
            action="store_true",
            help="leave behind state of operators that the code no longer has",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Raises CommandError when there is no such module, or the port is taken."""
        ended = threading.Event()

        def on_signal(number: int, frame: FrameType | None) -> None:
            ended.set()

        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, on_signal)
        flow = options["flow"]
        try:
            files = AuthorFiles(flow, Path.cwd())
            process = AuthorProcess(_task(options), self.stdout.write)
            with served(process, flow, options["port"]) as port:
                self.stdout.write(f"{flow} is at http://{HOST}:{port}/ ; Ctrl-C ends it.")
                self.stdout.flush()
                self._follow(files, process, ended)
        except Rejected as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal
        except OSError as error:
            raise CommandError(f"The page cannot be served: {error}.", returncode=2) from error
        process.close()
        if process.restore_from is not None:
            self.stdout.write(f"To continue from here: --restore-from {process.restore_from}")

    def _follow(self, files: AuthorFiles, process: AuthorProcess, ended: threading.Event) -> None:
        process.start()
        try:
            while not ended.wait(PERIOD_S):
                if files.have_changed():
                    self.stdout.write("The code has changed; it starts again.")
                    process.restart()
        finally:
            process.end()


def _task(options: dict[str, Any]) -> Task:
    """Raises Rejected if an option that needs NAME=VALUE has no `=`."""
    home = Path(settings.FTDASH_HOME)
    return Task(
        reference=options["flow"],
        root=str(Path(options["directory"] or home / "dev").absolute()),
        parameters=_pairs(options["parameter"]),
        parallelism=options["parallelism"],
        settings={INTERVAL_KEY: "1s", **_pairs(options["set"])},
        restore_from=options["restore_from"],
        allow_non_restored_state=options["allow_non_restored_state"],
    )


def _pairs(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise Rejected(f"Write NAME=VALUE instead of {text!r}.")
    return dict(text.split("=", 1) for text in texts)
