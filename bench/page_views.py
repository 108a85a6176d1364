"""Runs of the flow `page_view_count` over the events: one to its end, or one without an end.

A run is on Spark, in one of the modes that the option names. It can also be on plain processes, so
that tests of the benchmarks themselves are quick.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.events import EVENTS, event_files
from bench.whole_run import Measured, Start, run_to_its_end
from tests.driven_run import StartedRun, started_run
from tests.processes.host import hosted_run

ALL = "all"
_MODE = "execution.checkpointing.mode"
_UNALIGNED = {"execution.checkpointing.unaligned.enabled": "true"}

MODES: dict[str, dict[str, str]] = {
    "aligned": {},  # exactly once, like all modes that do not name another guarantee
    "unaligned": _UNALIGNED,
    "aligned-with-timeout": {
        **_UNALIGNED,
        "execution.checkpointing.aligned-checkpoint-timeout": "100 ms",
    },
    "at-least-once": {_MODE: "AT_LEAST_ONCE"},
    "at-most-once": {_MODE: "AT_MOST_ONCE"},
}


EVERY_SECOND, NEVER = "1 s", "off"
ROUNDS = {
    ("app_id", "hashmap"): 30,
    ("user_id", "hashmap"): 12,
    ("app_id", "rocksdb"): 20,
    ("user_id", "rocksdb"): 3,
}
"""How often to read the 10 million records: on the reference machine for at least ten seconds and
ten checkpoints."""

WITHOUT_END = 1_000_000  # readings


@dataclass(frozen=True, slots=True)
class Work:
    """The records to count: `events` of them, read `rounds` times."""

    key: str
    backend: str = "hashmap"
    rounds: int = WITHOUT_END
    events: int = EVENTS

    @property
    def directory(self) -> Path:
        return event_files(self.events)

    @property
    def records(self) -> int:
        return self.rounds * self.events

    @property
    def parameters(self) -> dict[str, str]:
        return {"data": str(self.directory), "key": self.key, "repeat": str(self.rounds)}


def add_work_options(parser: argparse.ArgumentParser) -> None:
    add_state_options(parser, key="app_id")
    parser.add_argument("--rounds", type=int, help="how often the events are read")


def add_state_options(parser: argparse.ArgumentParser, *, key: str) -> None:
    parser.add_argument("--key", choices=("app_id", "user_id"), default=key)
    parser.add_argument("--backend", choices=("hashmap", "rocksdb"), default="hashmap")
    parser.add_argument("--events", type=int, default=EVENTS, help="records of one reading")


def add_mode_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode",
        choices=(*MODES, ALL),
        default="aligned",
        help="of checkpoints; all: one after the other, told apart in by_mode",
    )


def modes_of(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(MODES) if options.mode == ALL else (options.mode,)


def work_of(options: argparse.Namespace) -> Work:
    rounds = options.rounds or ROUNDS[options.key, options.backend]
    return Work(options.key, options.backend, rounds, options.events)


def on_spark(
    root: Path, parameters: dict[str, str], settings: dict[str, str]
) -> AbstractContextManager[StartedRun]:
    return started_run(root, "page_view_count", parameters, settings=settings)


def on_processes(
    root: Path, parameters: dict[str, str], settings: dict[str, str]
) -> AbstractContextManager[StartedRun]:
    spec_fields: dict[str, object] = {"pipeline": "page_view_count", "parameters": parameters}
    return hosted_run(root, settings=settings, spec_fields=spec_fields)


def run_once(work: Work, mode: str, interval: str, start: Start = on_spark) -> Measured:
    """Measures a run from all subtasks running to everything committed.

    Raises RuntimeError if the run fails.
    """
    settings = {
        "execution.checkpointing.interval": interval,
        "state.backend.type": work.backend,
        **MODES[mode],
    }
    return run_to_its_end(work.records, work.parameters, settings, start)


@contextmanager
def endless_run(
    work: Work, start: Start = on_spark, settings: dict[str, str] | None = None
) -> Iterator[StartedRun]:
    """Starts a run that continues until the block ends, with a checkpoint every second."""
    chosen = {"state.backend.type": work.backend, **(settings or {})}
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        start(Path(root), work.parameters, chosen) as run,
    ):
        yield run
