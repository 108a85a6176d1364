"""The job master: one thread, one queue, every decision of a run in one place.

Hosts attempts one after the other, hands what it hears to the machines of `pipelines.protocol`,
and carries out what they decide. Records never pass here.

Source: Flink, `JobMaster` and `DefaultScheduler` (one pipelined region: the whole job restarts).
"""

import os
import queue
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from pipelines.bus.inbox import Inbox
from pipelines.bus.journal import JournalWriter
from pipelines.bus.lease import Lease
from pipelines.domain.clock import Clock
from pipelines.domain.commands import (
    Cancel,
    DriverCommand,
    KillSlot,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.errors import InvariantViolated, Rejected
from pipelines.domain.events import (
    Event,
    FailureOccurred,
    JobStatusChanged,
    RunEnded,
    RunStarted,
    SlotConnected,
    SlotLost,
    ZombieRefused,
)
from pipelines.domain.failures import CheckpointFailureReason
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.settings import Settings
from pipelines.domain.status import (
    CheckpointKind,
    JobStatus,
    RecoveryPhase,
    RequestOutcome,
)
from pipelines.protocol.fencing import AttemptFence
from pipelines.protocol.job import JobState
from pipelines.protocol.restart import GiveUp, RestartAfter
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.protocol.triggering import FINAL, TriggerRequest
from pipelines.runtime.attempt_host import AttemptHost, Readiness
from pipelines.runtime.checkpoint_host import (
    CheckpointHost,
    CheckpointListener,
    CheckpointSurroundings,
)
from pipelines.runtime.control import (
    Acknowledged,
    Committed,
    Declined,
    Deploy,
    Deployed,
    Ended,
    Failed,
    FromSlot,
    PeerLost,
    Running,
    Sampled,
    SourcesEnded,
    StrangerTurnedAway,
)
from pipelines.runtime.control_server import ControlServer
from pipelines.runtime.job_events import (
    CommandArrived,
    JobEvent,
    ManifestWritten,
    SlotArrived,
    SlotGone,
    SlotSpoke,
    StageEnded,
    StrangerRefused,
)
from pipelines.runtime.metrics_board import MetricsBoard
from pipelines.runtime.recovery_watch import RecoveryWatch
from pipelines.runtime.request_desk import RequestDesk
from pipelines.runtime.restart_choice import restart_backoff
from pipelines.runtime.restore_points import next_checkpoint_id, own_points
from pipelines.runtime.slot import SlotAddress
from pipelines.runtime.starting_point import StartingPoint, StartingPointChooser
from pipelines.storage.store import CheckpointStore
from pipelines.stream import Pipeline

STAGE_END_TIMEOUT_MS = 10_000.0
PEER_LOST_GRACE_MS = 250.0
"""How long a lost data connection waits for the news that its slot died, which says more."""
SLOT_START_TIMEOUT_MS = 120_000.0
"""From asking for a stage to all subtasks running; a cluster that is full may take its time."""
EXECUTOR_THREADS = 2


class StageHost(Protocol):
    """Where slots run. The real one is a Spark barrier stage."""

    def start(self, address: SlotAddress, parallelism: int) -> None:
        """Begin to start `parallelism` slots; their end is posted as `StageEnded`."""
        ...

    def cancel(self, address: SlotAddress) -> None:
        """Make sure that the stage of this attempt ends."""
        ...


class JobMaster(CheckpointListener):
    def __init__(
        self,
        spec: RunSpec,
        directory: RunDirectory,
        pipeline: Pipeline,
        settings: Settings,
        store: CheckpointStore,
        lease: Lease,
        journal: JournalWriter,
        inbox: Inbox,
        clock: Clock,
    ) -> None:
        self._spec = spec
        self._directory = directory
        self._pipeline = pipeline
        self._settings = settings
        self._store = store
        self._lease = lease
        self._journal = journal
        self._clock = clock
        self._events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        self._desk = RequestDesk(inbox, self._emit, self.post)
        self._chooser = StartingPointChooser(spec, pipeline, store, self._emit)
        self._fence = AttemptFence()
        self._state = JobState()
        self._restart = restart_backoff(settings)
        self._draws = random.Random(spec.run_id)  # for jitter
        self._board = MetricsBoard(clock)
        self._recovery = RecoveryWatch(clock, self._emit)
        self._executor = ThreadPoolExecutor(EXECUTOR_THREADS, thread_name_prefix="storage")
        self._control = ControlServer("127.0.0.1", self.post)
        self._attempt: AttemptHost | None = None
        self._address: SlotAddress | None = None
        self._stage_is_over = True
        self._suspicion: tuple[float, FailureOccurred] | None = None  # due, and what it would be
        self._began_ms = 0.0  # the current attempt
        self._restart_due_ms: float | None = None
        self._start: StartingPoint | None = None  # of this attempt, or of the next one
        self._checkpoint_due_ms: float | None = None
        self._sources_left: set[tuple[str, int]] = set()
        self._stop_path: str | None = None  # the point after which the run has to end
        self._outcome: tuple[JobStatus, str] | None = None
        self._checkpoints = self._checkpoint_host()
        self._stages: StageHost | None = None

    def post(self, event: JobEvent) -> None:
        """From any thread."""
        self._events.put(event)

    def run(self, stages: StageHost) -> JobStatus:
        """Until the run is over. Raises Rejected when it cannot start as asked."""
        self._stages = stages
        self._emit(self._run_started())
        self._begin_first_attempt()
        self._desk.open()
        while self._outcome is None:
            self._on_time()
            self._take_one()
        return self._finish(*self._outcome)

    # The loop.

    def _take_one(self) -> None:
        wait_s = max(0.0, self._next_due_ms() - self._clock.monotonic_ms()) / 1000.0
        try:
            event = self._events.get(timeout=wait_s)
        except queue.Empty:
            return
        self._on_event(event)

    def _on_event(self, event: JobEvent) -> None:
        match event:
            case SlotArrived():
                self._on_slot_arrived(event)
            case SlotSpoke():
                self._on_slot_spoke(event)
            case SlotGone(attempt, slot, problem):
                if self._is_current(attempt) and not self._current().has_ended(slot):
                    self._on_slot_lost(slot, problem)
            case StrangerRefused(attempt, what):
                self._emit(ZombieRefused(zombie_attempt=attempt, what=what))
            case StageEnded(attempt, problem):
                self._on_stage_ended(attempt, problem)
            case ManifestWritten():
                self._checkpoints.on_manifest(event)
            case CommandArrived(command):
                self._on_command(command)

    def _on_time(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._board.due_ms:
            self._report_metrics()
        self._act_on_suspicion(now_ms)
        self._look_for_silence(now_ms)
        self._look_for_a_late_start(now_ms)
        self._begin_when_due(now_ms)
        self._checkpoint_due_ms = self._checkpoints.on_time()

    def _next_due_ms(self) -> float:
        dues = [self._board.due_ms]
        if self._checkpoint_due_ms is not None:
            dues.append(self._checkpoint_due_ms)
        if self._suspicion is not None:
            dues.append(self._suspicion[0])
        if self._restart_due_ms is not None and self._stage_is_over:
            dues.append(self._restart_due_ms)
        return min(dues)

    # Attempts: begin, progress, end.

    def _begin_first_attempt(self) -> None:
        """A driver that replaces a dead one recovers; a new run starts where it was told to."""
        resumes = self._lease.attempts_so_far() > 0
        start = self._chooser.choose(self._checkpoints.points)
        if resumes:
            self._recovery.on_failure(self._clock.monotonic_ms(), start.source_records)
        self._decided(start)
        self._begin_attempt(start)

    def _decided(self, start: StartingPoint) -> None:
        self._start = start
        self._board.on_attempt_ended(start.source_records)
        self._recovery.on_decided(start.checkpoint_id, start.location, start.source_records)

    def _begin_attempt(self, start: StartingPoint) -> None:
        attempt = self._lease.next_attempt()
        self._fence.on_attempt(attempt)
        self._move_to(JobStatus.INITIALIZING)
        self._checkpoints.ancestors = start.ancestors_of(self._spec.run_id)
        self._chooser.rewind_sinks(start)
        self._began_ms = self._clock.monotonic_ms()
        self._attempt = AttemptHost(attempt, self._spec.parallelism)
        self._sources_left = {
            (uid, index)
            for uid in self._pipeline.sources
            for index in range(self._spec.parallelism)
        }
        self._address = self._control.open_for(attempt)
        self._stage_is_over = False
        if self._stages is not None:
            self._stages.start(self._address, self._spec.parallelism)

    def _on_slot_arrived(self, event: SlotArrived) -> None:
        if not self._is_current(event.attempt):
            self._emit(ZombieRefused(zombie_attempt=event.attempt, what="a slot that connected"))
            event.link.close()
            return
        attempt, hello = self._current(), event.hello
        attempt.on_arrived(hello, event.link, self._clock.monotonic_ms())
        self._emit(SlotConnected(slot=hello.slot, pid=hello.pid, host=hello.host))
        if attempt.readiness is Readiness.DEPLOYING:
            self._recovery.reached(RecoveryPhase.STOP)
            self._recovery.reached(RecoveryPhase.START)
            attempt.deploy(self._deployment())

    def _on_slot_spoke(self, event: SlotSpoke) -> None:
        if not self._is_current(event.attempt):
            return  # its connection is being closed; what it says changes nothing
        self._current().on_heard(event.slot, self._clock.monotonic_ms())
        self._on_message(event.slot, event.message)

    def _on_message(self, slot: int, message: FromSlot) -> None:
        match message:
            case Deployed():
                self._current().on_deployed(slot)
                if self._current().readiness is Readiness.BEGINNING:
                    self._current().begin()
            case Running():
                self._current().on_running(slot)
                if self._current().readiness is Readiness.RUNNING:
                    self._on_all_running()
            case Acknowledged():
                self._checkpoints.on_acknowledged(message)
            case Declined():
                self._checkpoints.on_declined(message)
            case Committed():
                self._checkpoints.on_committed(message)
            case SourcesEnded(vertex=vertex, subtask=subtask):
                self._sources_left.discard((vertex, subtask))
                if not self._sources_left:
                    self._checkpoints.on_sources_ended()
            case Sampled():
                self._board.on_sampled(slot, message)
                self._recovery.on_source_records(self._board.source_records)
            case Failed():
                self._on_subtask_failed(slot, message)
            case PeerLost(problem=problem):
                self._on_peer_lost(slot, problem)
            case StrangerTurnedAway(attempt=attempt, what=what):
                self._emit(ZombieRefused(zombie_attempt=attempt, what=what))
            case Ended():
                self._on_slot_ended(slot)

    def _on_all_running(self) -> None:
        self._move_to(JobStatus.RUNNING)
        self._recovery.reached(RecoveryPhase.RESTORE)
        self._checkpoints.on_running(self._current())
        if self._stop_path is not None:  # it failed between its last point and its end
            self._checkpoints.on_request(FINAL)

    def _on_slot_ended(self, slot: int) -> None:
        attempt = self._current()
        attempt.on_ended(slot)
        if attempt.have_all_ended:
            attempt.end()
            self._attempt = None
            self._end(JobStatus.FINISHED, self._finish_reason())

    # Failures.

    def _on_slot_lost(self, slot: int, problem: str) -> None:
        attempt = self._current()
        pid = attempt.pid_of(slot) or 0
        self._emit(SlotLost(slot=slot, pid=pid, reason=problem))
        heard_ms = attempt.heard_ms(slot) or self._clock.monotonic_ms()
        event = FailureOccurred(cause=f"Slot {slot} (pid {pid}) is gone: {problem}.", slot=slot)
        self._fail_attempt(event, heard_ms)

    def _on_subtask_failed(self, slot: int, message: Failed) -> None:
        where = "" if message.vertex is None else f"{message.vertex}[{message.subtask}]: "
        event = FailureOccurred(
            cause=f"{where}{message.cause}",
            vertex=message.vertex,
            subtask=message.subtask,
            slot=slot,
            detail=message.detail,
        )
        self._fail_attempt(event, self._clock.monotonic_ms(), is_fatal=message.is_fatal)

    def _on_peer_lost(self, slot: int, problem: str) -> None:
        if self._suspicion is None:
            due_ms = self._clock.monotonic_ms() + PEER_LOST_GRACE_MS
            cause = f"Slot {slot} lost a data connection: {problem}"
            self._suspicion = (due_ms, FailureOccurred(cause=cause, slot=slot))

    def _act_on_suspicion(self, now_ms: float) -> None:
        if self._suspicion is not None and now_ms >= self._suspicion[0]:
            self._fail_attempt(self._suspicion[1], self._suspicion[0] - PEER_LOST_GRACE_MS)

    def _on_stage_ended(self, attempt: int, problem: str) -> None:
        if attempt == self._fence.current:
            self._stage_is_over = True
        if self._is_current(attempt):
            cause = f"The Spark stage of attempt {attempt} ended: {problem or 'without an error'}"
            self._fail_attempt(FailureOccurred(cause=cause), self._clock.monotonic_ms())

    def _look_for_silence(self, now_ms: float) -> None:
        if self._attempt is None or self._state.status is not JobStatus.RUNNING:
            return
        for slot in self._attempt.silent_since(now_ms - self._settings.heartbeat_timeout_ms):
            self._on_slot_lost(slot, "it has been silent for longer than heartbeat.timeout")
            return

    def _look_for_a_late_start(self, now_ms: float) -> None:
        waiting = self._attempt is not None and self._state.status is JobStatus.INITIALIZING
        if waiting and now_ms > self._began_ms + SLOT_START_TIMEOUT_MS:
            cause = (
                f"Spark did not bring up {self._spec.parallelism} slots on {self._spec.master} "
                f"within {SLOT_START_TIMEOUT_MS / 1000:.0f} s."
            )
            self._fail_attempt(FailureOccurred(cause=cause), self._began_ms)

    def too_many_failures(self, message: str) -> None:
        self._fail_attempt(FailureOccurred(cause=message), self._clock.monotonic_ms())

    def _fail_attempt(
        self, event: FailureOccurred, last_sign_of_life_ms: float, *, is_fatal: bool = False
    ) -> None:
        """1. Record. 2. Fence the attempt. 3. Ask the restart strategy."""
        if self._attempt is None:
            return
        self._emit(event)
        self._recovery.on_failure(last_sign_of_life_ms, self._board.source_records)
        self._end_attempt(CheckpointFailureReason.TASK_FAILURE, event.cause)
        if is_fatal:
            self._move_to(JobStatus.FAILING, event.cause)
            self._end(JobStatus.FAILED, event.cause)
            return
        match self._restart.on_failure(self._clock.monotonic_ms(), self._draws.uniform(-1, 1)):
            case RestartAfter(delay_ms):
                self._restart_after(delay_ms, event.cause)
            case GiveUp(reason):
                self._move_to(JobStatus.FAILING, reason)
                self._end(JobStatus.FAILED, f"{event.cause} {reason}")

    def _restart_after(self, delay_ms: float, cause: str) -> None:
        self._move_to(JobStatus.RESTARTING, cause)
        try:
            self._decided(self._chooser.choose(self._checkpoints.points))
        except Rejected as error:
            self._move_to(JobStatus.FAILING, str(error))
            self._end(JobStatus.FAILED, str(error))
            return
        self._restart_due_ms = self._clock.monotonic_ms() + delay_ms

    def _begin_when_due(self, now_ms: float) -> None:
        due_ms, start = self._restart_due_ms, self._start
        if due_ms is None or now_ms < due_ms or start is None:
            return
        if not self._stage_is_over and now_ms < due_ms + STAGE_END_TIMEOUT_MS:
            return  # two attempts would want the same Spark slots
        self._restart_due_ms = None
        self._recovery.reached(RecoveryPhase.STOP)
        self._begin_attempt(start)

    def _end_attempt(self, reason: CheckpointFailureReason, why: str) -> None:
        attempt, self._attempt = self._attempt, None
        self._suspicion = None
        if attempt is None:
            return
        attempt.end()
        if self._stages is not None and self._address is not None:
            self._stages.cancel(self._address)
        self._checkpoints.on_stopped(reason, why)

    # What people ask for.

    def _on_command(self, command: DriverCommand) -> None:
        self._desk.accept(command)
        match command:
            case TriggerCheckpoint():
                self._request_checkpoint(command, CheckpointKind.CHECKPOINT, stops_run=False)
            case TakeSavepoint():
                self._request_checkpoint(command, CheckpointKind.SAVEPOINT, stops_run=False)
            case StopWithSavepoint():
                self._request_checkpoint(command, CheckpointKind.SAVEPOINT, stops_run=True)
            case Cancel():
                self._cancel(command)
            case KillSlot(slot=slot):
                self._kill(command, slot)

    def _request_checkpoint(
        self, command: DriverCommand, kind: CheckpointKind, *, stops_run: bool
    ) -> None:
        request = TriggerRequest(kind, command.request_id, stops_run)
        if not self._checkpoints.on_request(request):
            reason = CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS
            self._desk.answer(command.request_id, RequestOutcome.REJECTED, reason)

    def _cancel(self, command: Cancel) -> None:
        self._move_to(JobStatus.CANCELLING, f"{command.requested_by}: {command.reason}")
        self._end_attempt(
            CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, "The run is cancelled."
        )
        self._desk.answer(command.request_id, RequestOutcome.SUCCEEDED, "The run is cancelled.")
        self._end(JobStatus.CANCELED, f"cancelled by {command.requested_by}: {command.reason}")

    def _kill(self, command: KillSlot, slot: int) -> None:
        attempt = self._attempt
        if attempt is None or attempt.pid_of(slot) is None:
            message = (
                f"There is no running slot {slot}; slots are 0 to {self._spec.parallelism - 1}."
            )
            self._desk.answer(command.request_id, RequestOutcome.REJECTED, message)
            return
        pid = attempt.pid_of(slot)
        attempt.kill(slot, command.moment)
        when = "now" if command.moment.value == "now" else "the next time it aligns"
        message = f"Slot {slot} (pid {pid}) is killed {when}."
        self._desk.answer(command.request_id, RequestOutcome.SUCCEEDED, message)

    def checkpoint_completed(self, request: TriggerRequest, path: str) -> None:
        self._restart.on_progress()
        self._recovery.reached(RecoveryPhase.FIRST_CHECKPOINT)
        if request.stops_run and self._stop_path is None:
            self._stop_path = path
        outcome, message = RequestOutcome.SUCCEEDED, f"Completed: {path}"
        self._desk.answer(request.request_id, outcome, message, path)

    def checkpoint_aborted(self, request: TriggerRequest, message: str) -> None:
        self._desk.answer(request.request_id, RequestOutcome.FAILED, message)

    # The end.

    def _end(self, status: JobStatus, reason: str) -> None:
        self._outcome = (status, reason)

    def _finish(self, status: JobStatus, reason: str) -> JobStatus:
        self._move_to(status, reason)
        self._report_metrics()
        self._desk.close(f"The run ended first: {reason}")
        self._executor.shutdown(wait=True)
        self._control.close()
        self._emit(RunEnded(status=status, reason=reason))
        return status

    def _finish_reason(self) -> str:
        if self._stop_path is None or "savepoint-" not in self._stop_path:
            return "The sources have ended and the final checkpoint is committed."
        return f"Stopped with the savepoint {self._stop_path}."

    # Small things.

    def _emit(self, event: Event) -> None:
        self._journal.append(event, self._fence.current)

    def _move_to(self, status: JobStatus, reason: str = "") -> None:
        self._state.move_to(status)
        self._emit(JobStatusChanged(status=status, reason=reason))

    def _report_metrics(self) -> None:
        host = self._checkpoints
        self._emit(
            self._board.report(self._state.status, host.last_completed_ms, host.last_committed_ms)
        )

    def _is_current(self, attempt: int) -> bool:
        return self._attempt is not None and self._attempt.attempt == attempt

    def _current(self) -> AttemptHost:
        if self._attempt is None:
            raise InvariantViolated("an attempt is running")
        return self._attempt

    def _deployment(self) -> Deploy:
        return Deploy(
            run_id=self._spec.run_id,
            pipeline=self._spec.pipeline,
            parameters=self._spec.parameters,
            parallelism=self._spec.parallelism,
            max_parallelism=self._spec.max_parallelism,
            peers=self._current().peers(),
            storage_roots=[str(self._directory.path.parent.parent)],
            restore_location=self._start.location if self._start else None,
        )

    def _run_started(self) -> RunStarted:
        return RunStarted(
            pipeline=self._spec.pipeline,
            parallelism=self._spec.parallelism,
            max_parallelism=self._spec.max_parallelism,
            master=self._spec.master,
            guarantee=self._pipeline.guarantee,
            settings=self._spec.settings,
            restored_from=self._spec.restore_from,
            driver_pid=os.getpid(),
            vertices=self._pipeline.graph.shape(),
        )

    def _checkpoint_host(self) -> CheckpointHost:
        surroundings = CheckpointSurroundings(
            self._spec,
            self._directory,
            self._settings,
            self._pipeline.graph,
            self._store,
            self._clock,
            self._executor,
            self._fence,
            self._lease.is_current,
            self._emit,
            self.post,
        )
        points: tuple[RetainedPoint, ...] = tuple(own_points(self._directory, self._store))
        return CheckpointHost(
            surroundings,
            RetainedPoints(self._settings.retained_checkpoints, points),
            next_checkpoint_id(self._directory, self._spec),
            self,
        )
