"""The job master: one thread, one queue, every decision of a run in one place.

Passes each event to the part that decides: `slot_reports` (messages of slots), `attempts`,
`failures`, `command_desk` or `checkpoint_host`. These host the machines of `pipelines.protocol`.
Records never pass here. Each part takes the parts that it uses as arguments, and that gives the
order in which `assembled` makes them.

Source: Flink, `JobMaster` and `DefaultScheduler` (one pipelined region: the whole job restarts).
"""

import queue
from dataclasses import dataclass

from pipelines.domain.errors import InvariantViolated, Retryable
from pipelines.domain.events import JobStatusChanged, MetricsSampled, RunEnded
from pipelines.domain.status import JobStatus
from pipelines.runtime.master.attempt.attempts import STAGE_END_TIMEOUT_MS, Attempts
from pipelines.runtime.master.attempt.failures import Failures, restart_backoff
from pipelines.runtime.master.attempt.watchers import PoisonDesk, RecoveryWatch, RunWatchers
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.checkpoints.point_files import PointVerifier
from pipelines.runtime.master.job_events import (
    CommandArrived,
    JobEvent,
    LocationPrepared,
    ManifestWritten,
    PointsLookedAt,
    SlotArrived,
    SlotGone,
    SlotSpoke,
    StageEnded,
    StrangerRefused,
    TooManyFailedCheckpoints,
    WorkFailed,
    text_of,
)
from pipelines.runtime.master.requests.command_desk import CommandDesk, FaultDesk
from pipelines.runtime.master.requests.request_desk import RequestDesk
from pipelines.runtime.master.requests.run_end import CheckpointOutcomes, RunEnd
from pipelines.runtime.master.requests.start_undo import StartUndo
from pipelines.runtime.master.run_context import RunContext, StageHost
from pipelines.runtime.master.slots.metrics_board import MetricsBoard
from pipelines.runtime.master.slots.slot_reports import SlotReports
from pipelines.runtime.master.start.run_opening import (
    FoundPoints,
    damaged_files,
    first_checkpoint_id,
    found_points,
    how_it_ended,
    run_started,
    stopping_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts of the job master; all of them outlive every attempt."""

    watchers: RunWatchers
    end: RunEnd
    undo: StartUndo
    attempts: Attempts
    failures: Failures
    desk: RequestDesk
    faults: FaultDesk
    commands: CommandDesk
    verifier: PointVerifier
    slots: SlotReports


def assembled(context: RunContext) -> Assembly:
    """Raises Retryable if the storage does not answer, or answers without the run's points."""
    record, found = context.record, found_points(context)
    desk = RequestDesk(context.inbox, record.emit, context.post)
    end = RunEnd(record, stopping_of(context.journal, found.retained))
    watchers = _watchers(context, found, desk, end)
    undo = StartUndo(context, found.retained, lambda: watchers.checkpoints.is_publishing)
    attempts = Attempts(context, watchers, end, undo)
    failures = Failures(context, attempts, watchers, end)
    faults = FaultDesk(desk, attempts, context)
    verifier = PointVerifier(
        store=context.store,
        clock=context.clock,
        interval_ms=context.settings.checkpointing.verification_interval_ms,
        damage=watchers.checkpoints.damage,
        emit=record.emit,
        post=context.post,
        answer=desk.answer,
    )
    commands = CommandDesk(
        desk=desk,
        record=record,
        attempts=attempts,
        checkpoints=watchers.checkpoints,
        given_settings=context.spec.settings,
        check_fits=context.pipeline.check_fits,
        end=end,
        faults=faults,
        verifier=verifier,
        failures=failures,
        undo=undo,
    )
    slots = SlotReports(context, attempts, failures, faults, watchers, end)
    return Assembly(
        watchers=watchers,
        end=end,
        undo=undo,
        attempts=attempts,
        failures=failures,
        desk=desk,
        faults=faults,
        commands=commands,
        verifier=verifier,
        slots=slots,
    )


def _watchers(
    context: RunContext, found: FoundPoints, desk: RequestDesk, end: RunEnd
) -> RunWatchers:
    journal, emit = context.journal, context.record.emit
    recovery = RecoveryWatch(context.clock, emit)
    restart = restart_backoff(context.settings.restart)
    checkpoints = CheckpointHost(
        context,
        found.retained,
        first_checkpoint_id(context),
        CheckpointOutcomes(desk=desk, end=end, recovery=recovery, restart=restart),
        damaged_files(journal),
        found.given_up,
    )
    sampled = journal.newest(MetricsSampled)
    reached = sampled.reached_records if sampled is not None else None
    return RunWatchers(
        checkpoints=checkpoints,
        board=MetricsBoard(context.clock, context.slot_count, reached or 0),
        recovery=recovery,
        poison=PoisonDesk(context.settings.poison, context.places, emit, journal),
        restart=restart,
    )


class JobMaster:
    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._clock, self._events = context.clock, context.events
        self._record = context.record
        made = assembled(context)
        self._end, self._undo = made.end, made.undo
        self._checkpoints, self._board = made.watchers.checkpoints, made.watchers.board
        self._verifier = made.verifier
        self._attempts, self._failures = made.attempts, made.failures
        self._desk, self._commands, self._slots = made.desk, made.commands, made.slots
        self._faults = made.faults
        self._over = how_it_ended(context.journal)
        self._checkpoint_due_ms: float | None = None

    def run(self, stages: StageHost) -> JobStatus:
        """Returns once the run is over. If it raises, it has ended all slots of this driver.

        Raises:
            Rejected: the run cannot start as requested.
            LeaseLost: another driver has taken the run over.
            Retryable: a system that it needs does not answer; another driver may resume the run.
        """
        try:
            return self._run(stages)
        except Exception:
            self._attempts.abandon()
            self._context.control.close()
            raise

    def _run(self, stages: StageHost) -> JobStatus:
        if self._over is not None:
            return self._finish_again(self._over)
        self.begin(stages)
        self._desk.open()
        while not self.has_ended:
            self.take_turn()
        return self.finish()

    def cancel_unstarted(self) -> JobStatus:
        """Call instead of `run` if a person cancelled the run before it had slots. Raises Retryable
        if the cancellation was withdrawn: the run starts again."""
        if self._over is not None:
            return self._finish_again(self._over)
        for command in self._context.inbox.pending():
            if not self.has_ended:
                self._commands.on_command(command)
        if not self.has_ended:
            raise Retryable("The cancellation of the run was withdrawn")
        return self.finish()

    # The loop.

    def begin(self, stages: StageHost) -> None:
        """Start the first attempt. Raises Rejected and LeaseLost."""
        self._record.emit(run_started(self._context))
        self._failures.begin_first(stages)

    def take_turn(self, *, may_wait: bool = True) -> bool:
        """Do everything that is due, then handle one event; wait for it if `may_wait`.

        Returns False if there was no event. Raises LeaseLost.
        """
        self._context.loop.on_turn()
        with self._context.last.taken_along():
            self._on_time()
        event = self._next_event(may_wait=may_wait)
        if event is None:
            return False
        with self._context.last.taken_along():
            if (said := text_of(event)) is not None:
                self._context.last.note(said)
            self._on_event(event)
        return True

    @property
    def has_ended(self) -> bool:
        """True once the outcome of the run is decided: only `finish` is left to do."""
        return self._record.outcome is not None

    def _next_event(self, *, may_wait: bool) -> JobEvent | None:
        if not may_wait:
            return None if self._events.empty() else self._events.get_nowait()
        try:
            return self._events.get(timeout=self._until_due_s())
        except queue.Empty:
            return None

    def _until_due_s(self) -> float:
        return max(0.0, self._next_due_ms() - self._clock.monotonic_ms()) / 1000.0

    def _on_event(self, event: JobEvent) -> None:
        match event:
            case SlotArrived() | SlotSpoke() | SlotGone() | StrangerRefused():
                self._slots.on_event(event)
            case StageEnded(attempt, problem):
                self._failures.on_stage_ended(attempt, problem)
            case LocationPrepared():
                self._checkpoints.on_prepared(event)
            case ManifestWritten():
                self._checkpoints.on_manifest(event)
            case TooManyFailedCheckpoints(attempt, why):
                self._failures.on_too_many_failed_checkpoints(attempt, why)
            case PointsLookedAt():
                self._verifier.on_looked_at(event, self._checkpoints.points)
            case WorkFailed(error):
                raise error
            case CommandArrived(command):
                self._commands.on_command(command)

    def _on_time(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._board.due_ms:
            self._report_metrics()
        self._failures.on_time(now_ms)
        self._faults.on_time()
        self._failures.begin_when_due(now_ms)
        self._verifier.start_when_due(now_ms, self._checkpoints.points)
        self._checkpoint_due_ms = self._checkpoints.on_time()

    def _next_due_ms(self) -> float:
        dues = (
            self._board.due_ms,
            self._checkpoint_due_ms,
            self._failures.due_ms,
            self._attempts.restart_due_ms,
            self._verifier.due_ms,
        )
        return min(due_ms for due_ms in dues if due_ms is not None)

    # The end.

    def finish(self, *, may_wait: bool = True) -> JobStatus:
        """Answer open requests, and record how the run ended."""
        if self._record.outcome is None:
            raise InvariantViolated("a run is finished once it has ended")
        self._context.last.note("the end of the run")
        with self._context.loop.long_step(), self._context.last.taken_along():
            return self._finish(*self._record.outcome, may_wait=may_wait)

    def _finish(self, status: JobStatus, reason: str, *, may_wait: bool) -> JobStatus:
        self._end.answer(self._desk, reason)
        self._record.move_to(status, reason)
        self._undo.answer(self._desk)
        self._report_metrics()
        if may_wait:
            self._wait_for_slots()
        return self._close(status, reason)

    def _wait_for_slots(self) -> None:
        """Waits until no slot writes any more, so that the last sweep deletes every stray file."""
        deadline_ms = self._clock.monotonic_ms() + STAGE_END_TIMEOUT_MS
        while not self._attempts.is_stage_over:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return
            try:
                event = self._events.get(timeout=left_ms / 1000.0)
            except queue.Empty:
                return
            match event:
                case StageEnded(attempt):
                    self._attempts.on_stage_ended(attempt)
                case WorkFailed(error):
                    raise error

    def _finish_again(self, over: JobStatusChanged) -> JobStatus:
        """Repeats only the clean-up: the driver before this one died in the middle of it."""
        attempt = self._context.lease.attempts_so_far()
        self._context.fence.on_attempt(attempt)  # so that it may delete files
        return self._close(over.status, over.reason)

    def _close(self, status: JobStatus, reason: str) -> JobStatus:
        self._desk.close(f"The run ended first: {reason}")
        self._checkpoints.on_run_ended(status)
        self._context.executor.shutdown(wait=True)
        self._verifier.close()
        self._context.control.close()
        self._check_work()
        if status is not JobStatus.FINISHED:  # a finished run has committed everything
            self._attempts.clean_up()
        self._record.emit(RunEnded(status=status, reason=reason))
        return status

    def _check_work(self) -> None:
        """Raises the error of work that failed since the loop ended. The run is not over then, and
        the next driver repeats the clean-up: a run that is over is never swept again."""
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, WorkFailed):
                raise event.error

    # Metrics.

    def _report_metrics(self) -> None:
        host, status = self._checkpoints, self._record.status
        self._record.emit(
            self._board.report(
                status,
                host.last_completed_ms,
                host.last_committed_ms,
                self._attempts.restoring,
                self._failures.next_restart_delay_ms,
            )
        )
