"""A whole job master in this process; a script plays the slots.

The slots obey the master at once: they deploy, run, acknowledge every barrier for all subtasks,
commit, and end after the final checkpoint. A test may hold back their messages and send messages
for them. This needs no Spark, no other process and no socket.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import TypeVar

from pipelines.bus.inbox import Inbox, submit
from pipelines.bus.journal import JournalWriter, read_journal
from pipelines.bus.lease import Lease
from pipelines.domain.clock import Clock
from pipelines.domain.commands import DriverCommand
from pipelines.domain.errors import Retryable
from pipelines.domain.events import CheckpointCompleted, Event
from pipelines.domain.ids import Attempt, CheckpointId, Uid
from pipelines.domain.run import RunDirectory, SnapshotPlaces
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.snapshots import Json, OperatorSnapshot, SubtaskSnapshot
from pipelines.domain.status import JobStatus
from pipelines.protocol.commit import AttemptFence, CommitPermit
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.control import (
    Acknowledged,
    Begin,
    Committed,
    Completed,
    Deploy,
    Deployed,
    Ended,
    Failed,
    FromSlot,
    Hello,
    Inject,
    Message,
    Running,
    SourcesEnded,
)
from pipelines.runtime.faults import NO_FAULTS, FaultOnPurpose, Faults
from pipelines.runtime.master.driving import EXECUTOR_THREADS, control_server, given_settings
from pipelines.runtime.master.job_events import (
    JobEvent,
    LocationPrepared,
    SlotArrived,
    SlotGone,
    SlotSpoke,
    StageEnded,
    WatchedExecutor,
)
from pipelines.runtime.master.job_master import JobMaster
from pipelines.runtime.master.run_context import EventQueue, RunContext, RunRecord, unwatched_loop
from pipelines.runtime.networking import SlotAddress
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.store import CheckpointStore
from tests.unit.runtime.fakes import ListSource
from tests.unit.runtime.hosted import MemorySink, joining_pipeline
from tests.unit.runtime.points import spec_of
from tests.unit.runtime.recording_attempt import phases_of

E = TypeVar("E", bound=Event)
STEP_S = 60.0
VERTICES = ("left", "right", "both")


@dataclass(slots=True)
class ScriptedSlots:
    """Implements `StageHost` with one slot per attempt."""

    post: Callable[[JobEvent], None] = lambda event: None
    attempts: list[Attempt] = field(default_factory=list)
    links: list["_Link"] = field(default_factory=list)  # one for each attempt
    told: "queue.SimpleQueue[Message]" = field(default_factory=queue.SimpleQueue)
    injected: list[CheckpointId] = field(default_factory=list)
    final_ids: list[CheckpointId] = field(default_factory=list)  # of points that end the run
    holds_final: bool = False  # does not acknowledge what ends the run
    commits: bool = True
    commits_fail: int = 0  # how often a commit fails
    on_commit_failure: Callable[[], None] = lambda: None
    loses_output: bool = False  # the reason why commits fail
    acknowledges: bool = True
    positions: Json = None  # the positions that the sources report
    dies_slowly: bool = False  # True: the test ends the stage
    has_nothing_to_read: bool = False  # sources end before the slot is running
    are_brought_up: bool = True
    loads: bool = False  # True: the test says when the slot is deployed

    def start(self, address: SlotAddress, slot_count: int) -> None:
        self.attempts.append(address.attempt)
        if not self.are_brought_up:
            return
        hello = Hello(slot=0, pid=1, host="elsewhere", data_port=1)
        link = _Link(self, address.attempt)
        self.links.append(link)
        self.post(SlotArrived(address.attempt, hello, link))  # type: ignore[arg-type]

    def cancel(self, address: SlotAddress) -> None:
        """Ends a stage that has no slots. A slot ends when its connection closes."""
        if not self.are_brought_up:
            self.post(StageEnded(address.attempt, "cancelled"))

    def say(self, attempt: Attempt, message: FromSlot) -> None:
        self.post(SlotSpoke(attempt, 0, message))

    def acknowledge(self, attempt: Attempt, checkpoint_id: CheckpointId) -> None:
        for vertex in VERTICES:
            positions = self.positions if vertex in VERTICES[:2] else None
            self.say(attempt, acknowledgement(checkpoint_id, vertex, positions))


@dataclass(slots=True)
class _Link:
    """The master's end of a control connection."""

    slots: ScriptedSlots
    attempt: Attempt
    final_id: CheckpointId | None = None
    is_closed: bool = False

    @property
    def heard_ms(self) -> float:
        """The present time: this slot is never silent."""
        return SystemClock().monotonic_ms()

    def send(self, message: Message) -> None:
        if self.is_closed:
            raise OSError("closed")
        self.slots.told.put(message)
        match message:
            case Deploy() if not self.slots.loads:
                self.slots.say(self.attempt, Deployed())
            case Begin():
                for vertex in VERTICES[:2] if self.slots.has_nothing_to_read else ():
                    self.slots.say(self.attempt, SourcesEnded(vertex=Uid(vertex), subtask=0))
                self.slots.say(self.attempt, Running())
            case Inject(checkpoint_id=checkpoint_id, is_final=is_final):
                self.final_id = checkpoint_id if is_final else self.final_id
                if self.slots.acknowledges and not (is_final and self.slots.holds_final):
                    self.slots.acknowledge(self.attempt, checkpoint_id)
                self.slots.injected.append(checkpoint_id)
                self.slots.final_ids += [checkpoint_id] if is_final else []
            case Completed() if not self.slots.commits:
                pass
            case Completed(permit=CommitPermit(checkpoint_id=self.final_id as final_id)) if (
                self.slots.commits_fail
            ):
                self.slots.commits_fail -= 1
                self.slots.on_commit_failure()
                lost_of = final_id if self.slots.loses_output else None
                self.slots.say(self.attempt, commit_failed(lost_of))
            case Completed(permit=CommitPermit(checkpoint_id=checkpoint_id)):
                committed = Committed(checkpoint_id=checkpoint_id, vertex=Uid("both"), subtask=0)
                self.slots.say(self.attempt, committed)
                if checkpoint_id == self.final_id:
                    self.slots.say(self.attempt, Ended())

    def close(self) -> None:
        is_first, self.is_closed = not self.is_closed, True
        if is_first and not self.slots.dies_slowly:
            self.slots.post(StageEnded(self.attempt, ""))


def commit_failed(lost_output_of: CheckpointId | None) -> Failed:
    return Failed(
        vertex=Uid("both"),
        subtask=0,
        cause="the target takes no commit",
        detail="",
        is_fatal=lost_output_of is not None,
        lost_output_of=lost_output_of,
    )


def acknowledgement(
    checkpoint_id: CheckpointId, vertex: str, positions: Json = None
) -> Acknowledged:
    operator = OperatorSnapshot(uid=Uid(vertex), positions=positions)
    snapshot = SubtaskSnapshot(vertex=Uid(vertex), subtask=0, operators=[operator])
    return Acknowledged(
        checkpoint_id=checkpoint_id,
        snapshot=snapshot,
        phases=phases_of(vertex, 0),
        source_records=0,
        watermark_ms=None,
    )


class ScriptedRun:
    """One driver of the run, on a thread of its own. Another may follow in the same directory."""

    def __init__(
        self,
        root: Path,
        settings: dict[str, str] | None = None,
        *,
        has_nothing_to_read: bool = False,
        sink: MemorySink | None = None,
        source: ListSource | None = None,
        faults: Faults = NO_FAULTS,
        store: CheckpointStore | None = None,
        slots: ScriptedSlots | None = None,
        clock: Clock | None = None,
        **of_spec: object,
    ) -> None:
        """`of_spec` has further fields of the run's specification."""
        self.directory = RunDirectory.of(root, "joining", spec_of().run_id)
        self._lease = Lease.acquire(self.directory)
        clock = clock or SystemClock()
        run_id = self.directory.run_id
        self._journal = JournalWriter(self.directory, run_id, clock, lambda run, number: None)
        spec = spec_of(settings=settings or {}, **of_spec)
        spec = spec_of(settings=given_settings(spec, self._journal), **of_spec)
        parsed = parse_settings(spec.settings)
        places = SnapshotPlaces.of(self.directory, parsed.storage)
        store = store or FileSystemCheckpointStore([str(root)])
        pipeline = joining_pipeline(source or ListSource([]), sink or MemorySink())
        events: EventQueue = SimpleQueue()
        fence, loop = AttemptFence(), unwatched_loop()
        self._context = RunContext(
            spec=spec,
            pipeline=pipeline,
            settings=parsed,
            places=places,
            storage_roots=[str(root)],
            store=store,
            lease=self._lease,
            journal=self._journal,
            fence=fence,
            record=RunRecord(self._journal, fence),
            inbox=Inbox(self.directory),
            events=events,
            executor=WatchedExecutor(ThreadPoolExecutor(EXECUTOR_THREADS), events.put),
            control=control_server(parsed, spec.parallelism, events.put, loop, clock),
            clock=clock,
            draw=Random(spec.run_id).uniform,
            faults=faults,
            loop=loop,
        )
        try:
            self.master = JobMaster(self._context)
        except Retryable:
            self._journal.close()
            self._lease.close()
            raise
        self.slots = slots or ScriptedSlots()
        self.slots.post = self._context.post
        self.slots.has_nothing_to_read = has_nothing_to_read
        self.status: JobStatus | None = None
        self.error: Exception | None = None  # the driver's error
        self._is_to_die = False
        self._thread = threading.Thread(target=self._host, daemon=True)
        self._thread.start()

    def _host(self) -> None:
        try:
            self.status = self.master.run(self.slots)
        except Exception as error:
            self.error = error
        finally:
            self._journal.close()
            self._lease.close()

    def ask(self, command: DriverCommand) -> None:
        submit(self.directory, command)

    def of(self, kind: type[E]) -> list[E]:
        envelopes, _ = read_journal(self.directory.journal_file, 0)
        return [e.event for e in envelopes if isinstance(e.event, kind)]

    def wake(self) -> None:
        """Wakes the driver, so that it looks at its clock."""
        self.slots.post(LocationPrepared(CheckpointId(10**9)))

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Raises TimeoutError if the condition stays false, and any error of the driver."""
        waiting = threading.Event()
        for _ in range(int(STEP_S / 0.01)):
            self._check_driver()
            if holds():
                return
            waiting.wait(0.01)
        raise TimeoutError(
            f"not reached in {STEP_S} s: {read_journal(self.directory.journal_file, 0)}"
        )

    def wait_for_checkpoints(self, count: int) -> list[CheckpointCompleted]:
        self.wait_for(lambda: len(self.of(CheckpointCompleted)) >= count)
        return self.of(CheckpointCompleted)

    def die(self) -> None:
        """Ends the driver's loop without any cleanup, as if its process was killed."""
        self._is_to_die = True
        self._context.post(SlotGone(Attempt(99), 0, "no message comes from a future attempt"))
        self.wait_until_over()

    def wait_until_over(self) -> JobStatus | None:
        """Returns the final status. Raises any error of the driver."""
        self._thread.join(STEP_S)
        self._check_driver()
        return self.status

    def _check_driver(self) -> None:
        """Raises the driver's error, unless the test asked for the death."""
        is_wanted = self._is_to_die or isinstance(self.error, FaultOnPurpose)
        if self.error is not None and not is_wanted:
            raise self.error
