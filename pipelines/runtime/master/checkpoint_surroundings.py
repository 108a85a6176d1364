"""What a checkpoint host works with, and its listener's interface. Decides nothing."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from pipelines.domain.clock import Clock
from pipelines.domain.events import Event
from pipelines.domain.graph import JobGraph
from pipelines.domain.ids import Attempt
from pipelines.domain.places import SnapshotPlaces
from pipelines.domain.run import RunSpec
from pipelines.domain.settings import Settings
from pipelines.protocol.fencing import AttemptFence
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.faults import NO_FAULTS, Faults
from pipelines.runtime.master.job_events import JobEvent
from pipelines.storage.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class CheckpointSurroundings:
    """What a checkpoint host works with; all of it outlives every attempt."""

    spec: RunSpec
    places: SnapshotPlaces
    settings: Settings
    graph: JobGraph
    store: CheckpointStore
    clock: Clock
    executor: Executor
    fence: AttemptFence
    owns_run: Callable[[Attempt], bool]  # asks the lease, before anything becomes durable
    emit: Callable[[Event], None]
    post: Callable[[JobEvent], None]
    draw: Callable[[float, float], float]  # a number between two, for the phase of the schedule
    faults: Faults = NO_FAULTS


class CheckpointListener:
    """What the job master wants to know. The job master subclasses it; called on its thread."""

    def checkpoint_publishing(self, request: TriggerRequest, path: str) -> None:
        """All have acknowledged; the manifest is written next."""
        raise NotImplementedError

    def checkpoint_completed(self, request: TriggerRequest, path: str) -> None:
        raise NotImplementedError

    def checkpoint_aborted(self, request: TriggerRequest, message: str) -> None:
        raise NotImplementedError

    def too_many_failures(self, message: str) -> None:
        raise NotImplementedError
