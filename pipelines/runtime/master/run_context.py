"""Everything that the parts of one run share: its request, storage, record, and the outside world.

Decides nothing. A driver has threads, a socket, a Spark stage and the system's clock; the simulator
has a scheduler with a seed. So both pass these in.

Every part that belongs to a run and not to an attempt writes through its `RunRecord`, so every
event carries the number of the attempt that was current when it happened. `RunBeginning` keeps
where the sources began with the run, for all of its attempts and drivers. It is in the run's
directory before slots get it, so no later driver finds a different beginning.
"""

import logging
import math
import queue
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from pipelines.bus.inbox import Inbox
from pipelines.bus.journal import JournalWriter
from pipelines.bus.lease import Lease
from pipelines.connectors.files.data_frame import DataFrameRows
from pipelines.connectors.positions import Beginning, listing_once
from pipelines.connectors.source import AnySource, BeginsOnce
from pipelines.disk.files import make_durable, replace_atomically
from pipelines.domain.clock import Clock
from pipelines.domain.errors import UNDECODABLE, InvariantViolated, LastEvents, Rejected
from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointFailed,
    Event,
    FailureOccurred,
    JobStatusChanged,
)
from pipelines.domain.ids import Uid
from pipelines.domain.log_lines import LogLine
from pipelines.domain.run import MEMORY, RunSpec, SnapshotPlaces, scheme_of
from pipelines.domain.settings import Settings
from pipelines.domain.status import JobStatus
from pipelines.protocol.commit import AttemptFence
from pipelines.protocol.effects import SubtaskId
from pipelines.protocol.restart import JobState
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.faults import NO_FAULTS, Faults
from pipelines.runtime.master.job_events import JobEvent
from pipelines.runtime.master.signs_of_life import ControlLoop
from pipelines.runtime.master.slots.control_server import ControlDoor
from pipelines.runtime.networking import SlotAddress
from pipelines.storage.store import CheckpointStore
from pipelines.stream import Pipeline


class StageHost(Protocol):
    """The place where slots run. The real one is a Spark barrier stage."""

    def start(self, address: SlotAddress, slot_count: int) -> None:
        """Begin to start `slot_count` slots; post `StageEnded` when they have ended."""
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


class RunRecord:
    def __init__(self, journal: JournalWriter, fence: AttemptFence) -> None:
        self._journal = journal
        self._fence = fence
        self._state = JobState()
        self._outcome: tuple[JobStatus, str] | None = None

    @property
    def status(self) -> JobStatus:
        return self._state.status

    @property
    def outcome(self) -> tuple[JobStatus, str] | None:
        """How the run ends and why; None while it continues."""
        return self._outcome

    @property
    def last_heard_ms(self) -> float:
        """Monotonic time of the last sign of life of the driver before this one."""
        return self._journal.last_heard_ms

    @property
    def newest_completed(self) -> CheckpointCompleted | None:
        """The newest completed checkpoint of any driver of the run."""
        return newest_completed(self._journal)

    def has_said(self, event: Event) -> bool:
        """Returns True if any driver of the run has emitted an equal event that is still kept."""
        return event in self._journal.every(type(event))  # type: ignore[type-var]

    def emit(self, event: Event) -> None:
        self._journal.append(event, self._fence.current)
        _log(event)

    def move_to(self, status: JobStatus, reason: str = "") -> None:
        """Raises InvariantViolated if no run may make this move."""
        self._state.move_to(status)
        self.emit(JobStatusChanged(status=status, reason=reason))

    def end(self, status: JobStatus, reason: str) -> None:
        """Ends the job master's loop after its current step; the run has reached `status` then."""
        self._outcome = (status, reason)


def _log(event: Event) -> None:
    """Logs the events that help a reader of the log to place the lines around them."""
    match event:
        case JobStatusChanged(status=status, reason=reason):
            log.info("The run is %s. %s", status.value, reason)
        case FailureOccurred(cause=cause, detail=detail):
            log.warning("A failure: %s", f"{cause}\n{detail}" if detail else cause)
        case CheckpointFailed(checkpoint_id=checkpoint_id, reason=reason, message=message):
            log.warning("Checkpoint %s failed: %s: %s", checkpoint_id, reason.value, message)
        case _:
            pass


def newest_completed(journal: JournalWriter) -> CheckpointCompleted | None:
    """Returns the newest point that outlives the driver that completed it."""
    return journal.newest(CheckpointCompleted, lambda event: scheme_of(event.path) != MEMORY)


class StartGivenUp(Exception):
    """A person cancelled the run before its stage host had started."""


class RunBeginning:
    def __init__(
        self, file: Path | None = None, check_held: Callable[[], None] = lambda: None
    ) -> None:
        """If `file` is None, the beginning is kept for one driver only. `check_held` is called
        before each write; it raises if the lease is lost. Raises Rejected if the file cannot be
        decoded."""
        self._file = file
        self._check_held = check_held
        self._found = Beginning() if file is None else _read(file)

    @property
    def packed(self) -> bytes:
        return self._found.packed()

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Wrap the building of the pipeline in this context."""
        with listing_once(self._found.directories) as listed:
            yield
        if listed != self._found.directories:
            self._keep(msgspec.structs.replace(self._found, directories=listed))

    def look(self, sources: Mapping[Uid, AnySource]) -> None:
        """Finds where to begin with the sources that were not looked at yet. Raises Retryable."""
        new = {
            uid: source.find(frozenset(), is_start=True)
            for uid, source in sources.items()
            if isinstance(source, BeginsOnce) and uid not in self._found.splits
        }
        if new:
            self._keep(msgspec.structs.replace(self._found, splits={**self._found.splits, **new}))

    def _keep(self, found: Beginning) -> None:
        if self._file is not None:
            self._check_held()
            replace_atomically(self._file, msgspec.json.encode(found))
            make_durable(self._file.parent)
        self._found = found


def _read(file: Path) -> Beginning:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Beginning)
    except FileNotFoundError:
        return Beginning()
    except (InvariantViolated, *UNDECODABLE) as error:  # the first: positions that no source has
        raise Rejected(f"{file} does not say what the sources began with: {error}.") from error


log = logging.getLogger("ftdash.driver")

EventQueue = queue.SimpleQueue[JobEvent]
"""The queue of the job master's events; any thread may put one."""


def keep_no_lines(lines: list[LogLine], dropped: int) -> None:
    """Drops the lines, for a run without a log."""


def unwatched_loop() -> ControlLoop:
    """Returns a loop without a timeout, for a run whose loop is not watched."""
    return ControlLoop(SystemClock(), math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The shared parts of a run; all of them outlive every attempt."""

    spec: RunSpec
    pipeline: Pipeline
    settings: Settings  # at the start; a person may change some during the run
    places: SnapshotPlaces
    storage_roots: list[str]  # the run touches nothing outside these
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
    draw: Callable[[float, float], float]  # a random number between two bounds, for the first delay
    faults: Faults = NO_FAULTS
    beginning: RunBeginning = field(default_factory=RunBeginning)
    loop: ControlLoop = field(default_factory=unwatched_loop)
    keep_lines: Callable[[list[LogLine], int], None] = keep_no_lines  # takes lines logged by slots
    waited_ms: float = 0.0  # deliberate wait between the previous driver's end and this one's start
    last: LastEvents = field(default_factory=LastEvents)  # of the driver, for InvariantViolated

    @property
    def slot_count(self) -> int:
        return self.pipeline.graph.slot_count(self.spec.parallelism)

    def subtasks(self) -> Iterator[SubtaskId]:
        """Yields the subtasks of every vertex, in topological order."""
        for vertex in self.pipeline.graph.vertices:
            for subtask in range(vertex.parallelism or self.spec.parallelism):
                yield SubtaskId(vertex.uid, subtask)

    def post(self, event: JobEvent) -> None:
        """Puts an event into the job master's queue. Any thread may call this."""
        self.events.put(event)
