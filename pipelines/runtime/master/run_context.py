"""What the parts of one run share: request, storage, record, and ways out of the process.

Decides nothing. A driver has threads, a socket, a Spark stage and the system's clock, and the
simulator a scheduler with a seed. That is why both pass them in.

Every part that belongs to a run and not to an attempt writes through its `RunRecord`, so every
event carries the number of the attempt that was current when it happened. `RunBeginning` keeps what
the sources were given when the run began, for all of its attempts and drivers; it is in the run's
directory before slots get it, so no later driver finds something else.
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
from pipelines.domain.errors import UNDECODABLE, LastEvents, Rejected
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
    """Where slots run. The real one is a Spark barrier stage."""

    def start(self, address: SlotAddress, slot_count: int) -> None:
        """Begin to start so many slots; post `StageEnded` when they have ended."""
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
        """How the run ends and why; None while it goes on."""
        return self._outcome

    @property
    def last_heard_ms(self) -> float:
        """Monotonic: when the driver before this one was last heard."""
        return self._journal.last_heard_ms

    @property
    def newest_completed(self) -> CheckpointCompleted | None:
        """The newest of any driver of the run."""
        return newest_completed(self._journal)

    def has_said(self, event: Event) -> bool:
        """True if a driver of the run has emitted this very event, as far as events are kept."""
        return event in self._journal.every(type(event))  # type: ignore[type-var]

    def emit(self, event: Event) -> None:
        self._journal.append(event, self._fence.current)
        _log(event)

    def move_to(self, status: JobStatus, reason: str = "") -> None:
        """Raises InvariantViolated for a move that no run makes."""
        self._state.move_to(status)
        self.emit(JobStatusChanged(status=status, reason=reason))

    def end(self, status: JobStatus, reason: str) -> None:
        """The job master's loop ends after its current step; `status` is reached by then."""
        self._outcome = (status, reason)


def _log(event: Event) -> None:
    """What a reader of the log needs in order to place the lines around it."""
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
    """The newest point that outlives the driver that completed it."""
    return journal.newest(CheckpointCompleted, lambda event: scheme_of(event.path) != MEMORY)


class StartGivenUp(Exception):
    """A person has cancelled the run while what its slots run on was still starting."""


class RunBeginning:
    def __init__(
        self, file: Path | None = None, check_held: Callable[[], None] = lambda: None
    ) -> None:
        """`file` None: it is kept for one driver only. `check_held` is called before each write and
        raises if the lease is lost. Raises Rejected if the file makes no sense."""
        self._file = file
        self._check_held = check_held
        self._found = Beginning() if file is None else _read(file)

    @property
    def packed(self) -> bytes:
        return self._found.packed()

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Wrap it around building the pipeline."""
        with listing_once(self._found.directories) as listed:
            yield
        if listed != self._found.directories:
            self._keep(msgspec.structs.replace(self._found, directories=listed))

    def look(self, sources: Mapping[Uid, AnySource]) -> None:
        """Finds where to begin with sources that were not looked at yet. Raises Retryable."""
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
    except UNDECODABLE as error:
        raise Rejected(f"{file} does not say what the sources began with: {error}.") from error


log = logging.getLogger("ftdash.driver")

EventQueue = queue.SimpleQueue[JobEvent]
"""What the job master takes its events from; any thread may put one."""


def keep_no_lines(lines: list[LogLine], dropped: int) -> None:
    """For a run without a log."""


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
    keep_lines: Callable[[list[LogLine], int], None] = keep_no_lines  # that slots have logged
    waited_ms: float = 0.0  # on purpose, from the end of the driver before to the start of this one
    last: LastEvents = field(default_factory=LastEvents)  # of the driver, for what breaks a rule

    @property
    def slot_count(self) -> int:
        return self.pipeline.graph.slot_count(self.spec.parallelism)

    def subtasks(self) -> Iterator[SubtaskId]:
        """Of every vertex, in topological order."""
        for vertex in self.pipeline.graph.vertices:
            for subtask in range(vertex.parallelism or self.spec.parallelism):
                yield SubtaskId(vertex.uid, subtask)

    def post(self, event: JobEvent) -> None:
        """From any thread."""
        self.events.put(event)
