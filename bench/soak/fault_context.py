"""The context of a fault, and the requests that faults make of a pipeline.

Django has to be loaded in the environment of a separate installation.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import psutil

from bench.drill.staging import STARTED_WITHIN_S, Staged
from ftdash.embedded.supervisor import wait_until
from ftdash.jobs.models import OPEN_PHASES, Request, RequestPhase
from ftdash.requests import services
from pipelines.domain.commands import RunCommand
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId

WHO = "soak"
UNALIGNED = "execution.checkpointing.unaligned.enabled"
ENDED_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class FaultContext:
    """The context of a fault: its pipeline, its length, and the random numbers of its seed."""

    staged: Staged
    length_s: float
    rng: Random

    def for_its_length(self, staging: Callable[[Staged], Iterator[float]]) -> None:
        with contextmanager(staging)(self.staged):
            time.sleep(self.length_s)

    @property
    def slot(self) -> psutil.Process:
        """Waits until the slot that the seed chooses lives."""
        return self.staged.slot(self.slot_number)

    @property
    def slot_number(self) -> int:
        return self.rng.randrange(self.staged.run.parallelism)


def request_and_wait(staged: Staged, command: RunCommand) -> Request:
    """Raises Rejected if the request did not succeed: it may be refused amid a recovery."""
    staged.wait(lambda run: run.status == "RUNNING" or run.is_terminal, STARTED_WITHIN_S)
    return ended(services.ask(staged.name, command, who=WHO, why="the soak"))


def ended(request_id: RequestId) -> Request:
    def request() -> Request:
        return Request.objects.select_related("pipeline").get(request_id=request_id)

    given = request()
    what = f"The request to {given.command.action} of {given.pipeline.name}"
    wait_until(
        lambda: request().phase not in OPEN_PHASES,
        within_s=ENDED_WITHIN_S,
        otherwise=lambda: f"{what} did not end.",
    )
    found = request()
    if found.phase != RequestPhase.SUCCEEDED:
        raise Rejected(f"{what} failed: {found.message}")
    return found


def path_of(savepoint: Request) -> str:
    if savepoint.path is None:
        raise Rejected(f"The savepoint of {savepoint.pipeline.name} has no path.")
    return savepoint.path
