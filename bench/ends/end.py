"""What is measured of one end: a bare loop and a run, which write the same records."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from bench.whole_run import Measured, run_to_its_end
from tests.driven_run import StartedRun
from tests.processes.ends import ADDRESS
from tests.processes.host import hosted_run

EVERY_SECOND = {"execution.checkpointing.interval": "1 s"}


class EndMissing(Exception):
    """Why this machine lacks it, in a clause."""


class End(Protocol):
    """Each call writes all records to a place of its own, and raises RuntimeError if some lack."""

    @property
    def records(self) -> int: ...

    def bare(self) -> float:
        """Records per second of the client alone."""
        ...

    def exactly_once(self) -> Measured: ...


def run_between_ends(records: int, address: str, *, to: str, source: str, target: str) -> Measured:
    """The flow `ends` on slots that are plain processes, because it is the engine that is
    measured, not how Spark starts it."""

    def start(
        root: Path, parameters: dict[str, str], settings: dict[str, str]
    ) -> AbstractContextManager[StartedRun]:
        asked: dict[str, object] = {"pipeline": "ends", "parameters": parameters}
        return hosted_run(root, settings=settings, asked=asked, environment={ADDRESS: address})

    parameters = {"to": to, "source": source, "target": target}
    return run_to_its_end(records, parameters, EVERY_SECOND, start)
