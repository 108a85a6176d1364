"""The parts of a run, the watchers of its attempts, and the host of its slots. Decides nothing."""

import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pipelines.bus.lease import Lease
from pipelines.connectors.files.data_frame import DataFrameRows
from pipelines.domain.clock import Clock
from pipelines.domain.places import SnapshotPlaces
from pipelines.domain.run import RunSpec
from pipelines.domain.settings import Settings
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.faults import Faults
from pipelines.runtime.master.attempt.poison_desk import PoisonDesk
from pipelines.runtime.master.attempt.recovery_watch import RecoveryWatch
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.control_loop import ControlLoop
from pipelines.runtime.master.slots.metrics_board import MetricsBoard
from pipelines.runtime.master.start.run_beginning import RunBeginning
from pipelines.runtime.networking import SlotAddress
from pipelines.storage.store import CheckpointStore
from pipelines.stream import Pipeline


class StageHost(Protocol):
    """Where slots run. The real one is a Spark barrier stage."""

    def start(self, address: SlotAddress, parallelism: int) -> None:
        """Begin to start `parallelism` slots; post `StageEnded` when they have ended."""
        ...

    def cancel(self, address: SlotAddress) -> None:
        """Make sure that the stage of this attempt ends."""
        ...


@runtime_checkable
class KeepsDataFrames(Protocol):
    """A host that has Spark."""

    def keep_rows(self, source: DataFrameRows) -> int:
        """Writes the rows of a DataFrame to files; returns how many. Raises Rejected."""
        ...


def unwatched_loop() -> ControlLoop:
    """For a run whose loop is not watched."""
    return ControlLoop(SystemClock(), math.inf)


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run is made of; all of it outlives every attempt."""

    spec: RunSpec
    places: SnapshotPlaces
    storage_roots: list[str]  # nothing outside is touched
    pipeline: Pipeline
    settings: Settings
    store: CheckpointStore
    lease: Lease
    clock: Clock
    faults: Faults
    beginning: RunBeginning = field(default_factory=RunBeginning)
    loop: ControlLoop = field(default_factory=unwatched_loop)


@dataclass(frozen=True, slots=True)
class RunWatchers:
    """The parts that follow an attempt from its decision to its end."""

    checkpoints: CheckpointHost
    board: MetricsBoard
    recovery: RecoveryWatch
    poison: PoisonDesk
