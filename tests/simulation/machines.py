"""Every machine of the protocol checks its own state after each event that it handles.

A machine is a class of `pipelines.protocol` with an event to handle and a state to check.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from inspect import isfunction
from typing import Any
from unittest.mock import patch

from pipelines.domain.errors import InvariantViolated
from pipelines.protocol.acking import Acker, Spout
from pipelines.protocol.alignment import BarrierAligner, BarrierTracker, UnalignedBarriers
from pipelines.protocol.commit import AttemptFence, CommitLog, OutputLedger
from pipelines.protocol.coordination import CheckpointCoordinator
from pipelines.protocol.driver_watch import DriverWatch
from pipelines.protocol.repeated_failures import PoisonRecords, RepeatedFailures
from pipelines.protocol.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    JobState,
    RecoveryProgress,
)
from pipelines.protocol.retention import (
    CompletedIncrements,
    DamagedFiles,
    RetainedPoints,
    SharedFiles,
)
from pipelines.protocol.triggering import TriggerDecider
from pipelines.protocol.watermarks import WatermarkMerger

MACHINES: tuple[type[Any], ...] = (
    Acker,
    AttemptFence,
    BarrierAligner,
    BarrierTracker,
    CheckpointCoordinator,
    CommitLog,
    CompletedIncrements,
    DamagedFiles,
    DriverWatch,
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    JobState,
    OutputLedger,
    PoisonRecords,
    RecoveryProgress,
    RepeatedFailures,
    RetainedPoints,
    SharedFiles,
    Spout,
    TriggerDecider,
    UnalignedBarriers,
    WatermarkMerger,
)
EVENTS = ("on_", "take", "leave", "rotate", "move_to", "tolerate")


class BrokenMachine(AssertionError):
    """A machine contradicted itself, though the run may have recovered from it."""


@contextmanager
def machines_validated() -> Iterator[None]:
    """Raises BrokenMachine at the end if a machine contradicted itself after an event."""
    violations: list[str] = []
    with ExitStack() as stack:
        for machine in MACHINES:
            for name, method in list(vars(machine).items()):
                if isfunction(method) and name.startswith(EVENTS):
                    stack.enter_context(patch.object(machine, name, _step(method, violations)))
        try:
            yield
        finally:
            if violations:
                raise BrokenMachine(f"{len(violations)} times, first {violations[0]}")


def _step(method: Any, violations: list[str]) -> Any:
    @wraps(method)
    def step(self: Any, *arguments: Any, **options: Any) -> Any:
        answer = method(self, *arguments, **options)
        try:
            self.validate_state()
        except InvariantViolated as error:
            violations.append(f"{method.__qualname__}{arguments}: {error}")
            raise
        return answer

    return step
