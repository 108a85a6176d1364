"""What the parts of one run share: its request, its storage, its ways out of the process.

Decides nothing. A driver has threads, a socket and the system's clock, and the simulator a
scheduler with a seed. That is why both pass them in.
"""

import math
import queue
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from pipelines.bus.inbox import Inbox
from pipelines.bus.journal import JournalWriter
from pipelines.bus.lease import Lease
from pipelines.domain.clock import Clock
from pipelines.domain.run import RunSpec, SnapshotPlaces
from pipelines.domain.settings import Settings
from pipelines.protocol.fencing import AttemptFence
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.faults import NO_FAULTS, Faults
from pipelines.runtime.master.job_events import JobEvent
from pipelines.runtime.master.run_record import RunRecord
from pipelines.runtime.master.signs_of_life import ControlLoop
from pipelines.runtime.master.slots.control_server import ControlDoor
from pipelines.runtime.master.start.run_beginning import RunBeginning
from pipelines.storage.store import CheckpointStore
from pipelines.stream import Pipeline

EventQueue = queue.SimpleQueue[JobEvent]
"""What the job master takes its events from; any thread may put one."""


def unwatched_loop() -> ControlLoop:
    """For a run whose loop is not watched."""
    return ControlLoop(SystemClock(), math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """All of it outlives every attempt."""

    spec: RunSpec
    pipeline: Pipeline
    settings: Settings  # those of the start; a person may change some while the run lasts
    places: SnapshotPlaces
    storage_roots: list[str]  # nothing outside is touched
    store: CheckpointStore
    lease: Lease
    journal: JournalWriter
    fence: AttemptFence
    record: RunRecord
    inbox: Inbox
    events: EventQueue
    executor: Executor  # writes and deletes the files of points
    control: ControlDoor  # where slots dial in
    clock: Clock
    draw: Callable[[float, float], float]  # a number between two, for the phase of the schedule
    faults: Faults = NO_FAULTS
    beginning: RunBeginning = field(default_factory=RunBeginning)
    loop: ControlLoop = field(default_factory=unwatched_loop)

    def post(self, event: JobEvent) -> None:
        """From any thread."""
        self.events.put(event)
