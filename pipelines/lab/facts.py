"""What is known of one run of the lab when it is over, and whether it may be compared at all."""

from dataclasses import dataclass
from typing import TypeVar

from pipelines.domain.events import EngineEvent, Envelope, RunEnded
from pipelines.domain.status import JobStatus
from pipelines.lab.view_input import Numbers
from pipelines.lab.view_log import Rows

E = TypeVar("E", bound=EngineEvent)


class TrialFailed(Exception):
    """The run did not come to its end, or not all faults happened: there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`reads` as `view_input.reads` gives them."""

    envelopes: list[Envelope]
    rows: Rows
    reads: list[tuple[int, Numbers]]
    kills: list[tuple[int, int]]  # when, wall clock in milliseconds, and at which view
    began_ms: int

    def of(self, kind: type[E]) -> list[E]:
        return [each.event for each in self.envelopes if isinstance(each.event, kind)]


def check_comparable(facts: Facts, status: JobStatus, faults: int) -> None:
    """Raises TrialFailed, saying why, unless the run has ended with all its `faults`."""
    if status is not JobStatus.FINISHED:
        reasons = [ended.reason for ended in facts.of(RunEnded) if ended.reason]
        why = reasons[-1] if reasons else "its journal does not say why."
        raise TrialFailed(f"The run is {status}: {why}")
    if len(facts.kills) != faults:
        raise TrialFailed(f"Of {faults} faults only {len(facts.kills)} came about in the run.")
