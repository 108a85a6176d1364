"""The measurements of one end: a bare loop and a run, which write the same records.

Several processes share the loop; the time to start them does not count.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Protocol, TypeVar

from bench.whole_run import Measured, run_to_its_end
from tests.driven_run import StartedRun
from tests.processes.ends import ADDRESS
from tests.processes.host import forks, hosted_run

EVERY_SECOND = {"execution.checkpointing.interval": "1 s"}
START_S = 60.0

Share = TypeVar("Share")


class EndMissing(Exception):
    """This machine lacks the end; the message says why, in a clause."""


class End(Protocol):
    """Each call writes all records to a new place, and raises RuntimeError if some are missing."""

    @property
    def records(self) -> int: ...

    def bare(self) -> float:
        """Returns the records per second of the client alone."""
        ...

    def exactly_once(self) -> Measured: ...


def run_between_ends(records: int, address: str, *, to: str, source: str, target: str) -> Measured:
    """Runs the flow `ends` on slots that are plain processes.

    The benchmark measures the engine, not how Spark starts it.
    """

    def start(
        root: Path, parameters: dict[str, str], settings: dict[str, str]
    ) -> AbstractContextManager[StartedRun]:
        spec_fields: dict[str, object] = {"pipeline": "ends", "parameters": parameters}
        return hosted_run(
            root, settings=settings, spec_fields=spec_fields, environment={ADDRESS: address}
        )

    parameters = {"to": to, "source": source, "target": target}
    return run_to_its_end(records, parameters, EVERY_SECOND, start)


def seconds_for(work: Callable[[Share], None], shares: list[Share]) -> float:
    """Works on all shares at once, each in its own process. Raises RuntimeError if one fails."""
    ready = forks.Barrier(len(shares) + 1)
    processes = [forks.Process(target=_work, args=(ready, work, share)) for share in shares]
    for process in processes:
        process.start()
    ready.wait(START_S)
    began = time.monotonic()
    for process in processes:
        process.join()
    took_s = time.monotonic() - began
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"{work.__name__} failed")
    return took_s


def _work(ready: Barrier, work: Callable[[Share], None], share: Share) -> None:
    ready.wait(START_S)
    work(share)
