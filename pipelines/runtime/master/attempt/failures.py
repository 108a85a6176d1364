"""Decides what counts as a failure of the attempt, and what follows it.

Notices lost slots, failed subtasks, silence, and stages that end or never start. Records the
failure in sentences for people, has the attempt ended, and restarts as far as the restart strategy
of the settings allows.

Source: Flink, `DefaultScheduler.handleGlobalFailure` and `ExecutionFailureHandler`.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.errors import (
    FailureKind,
    Rejected,
    Retryable,
    TargetTaken,
    kind_of,
    kind_of_text,
)
from pipelines.domain.events import FailureOccurred, SlotLost
from pipelines.domain.ids import Attempt
from pipelines.domain.origins import Firing
from pipelines.domain.settings import RestartOptions, RestartStrategy, Settings
from pipelines.domain.settings.failures import LIMIT_KEY, MIN_DURATION_KEY, MIN_TRIES_KEY
from pipelines.domain.status import JobStatus
from pipelines.protocol.effects import SubtaskId
from pipelines.protocol.repeated_failures import (
    Deterministic,
    Isolate,
    LimitReached,
    NobodysFault,
    OperatorError,
    Place,
    Quarantine,
    Repeated,
    RepeatedFailures,
    Returning,
)
from pipelines.protocol.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    GiveUp,
    NoRestart,
    RestartAfter,
    RestartBackoff,
)
from pipelines.runtime.control import Failed
from pipelines.runtime.master.attempt.attempt_host import AttemptHost, Readiness
from pipelines.runtime.master.attempt.attempts import Attempts
from pipelines.runtime.master.attempt.watchers import RunWatchers
from pipelines.runtime.master.requests.run_end import RunEnd
from pipelines.runtime.master.run_context import RunContext, StageHost
from pipelines.runtime.master.start.starting_point import EndsNotReady

if TYPE_CHECKING:
    from pipelines.domain.clock import Clock


def failure_of(message: Failed, slot: int) -> FailureOccurred:
    """Builds the event. It names operator, subtask, split and offsets as far as they are known."""
    error = message.error
    return FailureOccurred(
        cause=f"{_place(message)}{message.cause}",
        vertex=message.vertex,
        subtask=message.subtask,
        slot=slot,
        detail=message.detail,
        operator=error.operator if error else None,
        origin=error.origin if error else None,
        author_trace=message.author_trace,
        record=message.record,
        kind=message.kind,
    )


def final_reason(event: FailureOccurred, repeated: Repeated, *, is_fatal: bool) -> str | None:
    """Returns why no restart can help, or None if one may."""
    if is_fatal:
        return event.cause
    if not isinstance(repeated, Deterministic):
        return None
    return (
        f"{event.cause.rstrip('.')}. The same failure came {repeated.tries} times within"
        f" {repeated.over_ms / 1000:.1f} s, each time {_where(repeated.place)}: a restart would"
        " only repeat it. Correct the function or the data, then start from the newest checkpoint."
    )


def restart_reason(event: FailureOccurred, repeated: Repeated) -> str:
    """Returns why the run restarts, and warns if the same failure may soon end the run."""
    if not isinstance(repeated, Returning):
        return event.cause
    return (
        f"{event.cause.rstrip('.')}. The same failure has come {repeated.tries} times within"
        f" {repeated.over_ms / 1000:.1f} s, each time {_where(repeated.place)}. It may pass, as an"
        " outage of a service that the function calls does; it counts as deterministic after"
        f" {MIN_TRIES_KEY} and {MIN_DURATION_KEY}."
    )


def too_many_reason(event: FailureOccurred, limit: int) -> str:
    """Returns why a run with a quarantine ends: it has set aside as many records as it may."""
    return (
        f"{event.cause.rstrip('.')}. The run has set aside as many records as it may,"
        f" {limit} ({LIMIT_KEY}): look at them in the quarantine, correct the function or the"
        " data, and start from the newest checkpoint, or raise the limit."
    )


def _place(message: Failed) -> str:
    error = message.error
    number = "" if message.subtask is None else f"[{message.subtask}]"
    if error is None:
        return f"{message.vertex}{number}: " if message.vertex else ""
    return f"{error.operator}{number} failed{_places(error)}: "


def _places(error: OperatorError) -> str:
    place = error.firing or error.origin
    places: list[Place] = list(error.candidates) if place is None else [place]
    if not places:
        return ""
    named = "; or ".join(_where(each) for each in places[:_NAMED_MAX])
    others = len(places) - _NAMED_MAX
    return f" {named}" + (f"; or at one of {others} other places" if others > 0 else "")


def _where(place: Place) -> str:
    """Names a place. Records that only advanced event time are not at fault: they give the time."""
    if isinstance(place, Firing):
        return str(place)
    return f"at the time of {place}" if place.is_moment else f"at {place}"


_NAMED_MAX = 3
"""The limit of possible places of a failure that a message names."""


def restart_backoff(restart: RestartOptions) -> RestartBackoff:
    match restart.strategy:
        case RestartStrategy.NONE:
            return NoRestart()
        case RestartStrategy.FIXED_DELAY:
            fixed = restart.fixed_delay
            return FixedDelayRestart(attempts=fixed.attempts, delay_ms=fixed.delay_ms)
        case RestartStrategy.FAILURE_RATE:
            rate = restart.failure_rate
            return FailureRateRestart(
                max_failures=rate.max_failures, interval_ms=rate.interval_ms, delay_ms=rate.delay_ms
            )
        case RestartStrategy.EXPONENTIAL_DELAY:
            backoff = restart.exponential_delay
            return ExponentialDelayRestart(
                initial_ms=backoff.initial_ms,
                max_ms=backoff.max_ms,
                multiplier=backoff.multiplier,
                reset_threshold_ms=backoff.reset_threshold_ms,
                jitter_factor=backoff.jitter_factor,
                attempts=backoff.attempts,
            )


SLOT_LOST_GRACE_MS = 250.0
"""How long a lost data connection or stage waits for the report of a dead slot, which says more."""


class Failures:
    def __init__(
        self,
        context: RunContext,
        attempts: Attempts,
        watchers: RunWatchers,
        end: RunEnd,
    ) -> None:
        self._context = context
        self._clock: Clock = context.clock
        self._record = context.record
        self._attempts = attempts
        self._board = watchers.board
        self._recovery = watchers.recovery
        self._poison = watchers.poison
        self._end = end
        self._restart = watchers.restart
        repeated = context.settings.restart.repeated_failure
        self._repeated = RepeatedFailures(
            tries_min=repeated.tries_min, over_min_ms=repeated.over_min_ms
        )
        self._draws = random.Random(context.spec.run_id)  # for jitter
        self._suspicion: tuple[float, FailureOccurred] | None = None  # due, and the failure
        self._choice_due_ms: float | None = None  # when to ask the storage again for a start

    @property
    def due_ms(self) -> float | None:
        """The latest monotonic time at which `on_time` must be called again."""
        dues = [self._choice_due_ms, self._suspicion[0] if self._suspicion else None]
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)

    @property
    def next_restart_delay_ms(self) -> float | None:
        """The approximate restart delay after a failure now; None if the run would not restart."""
        return self._restart.next_delay_ms(self._clock.monotonic_ms())

    def undo_start(self) -> None:
        """Ends the attempt or the wait for one, so that the start of the run can be undone."""
        self._suspicion = self._choice_due_ms = None
        self._attempts.undo_start()

    def on_settings(self, settings: Settings) -> None:
        """Applies changed settings from now on."""
        self._poison.on_settings(settings.poison)

    def retry_now(self) -> bool:
        """Ends the wait before the next attempt. Returns False if nothing waits."""
        now_ms = self._clock.monotonic_ms()
        if self._choice_due_ms is not None:
            self._choice_due_ms = now_ms
        elif not self._attempts.retry_now(now_ms):
            return False
        self._restart.on_retried(now_ms)
        return True

    # Reports.

    def on_slot_lost(self, slot: int, problem: str) -> None:
        attempt = self._attempts.current()
        pid = attempt.pid_of(slot) or 0
        self._record.emit(SlotLost(slot=slot, pid=pid, reason=problem))
        heard_ms = attempt.heard_ms(slot) or self._clock.monotonic_ms()
        event = FailureOccurred(
            cause=f"Slot {slot} (pid {pid}) is gone: {problem}.",
            slot=slot,
            kind=FailureKind.SLOT_LOST,
        )
        self.fail(event, heard_ms)

    def on_too_many_failed_checkpoints(self, attempt: Attempt, why: str) -> None:
        if self._attempts.admit(attempt, None) is not None:
            kind = kind_of_text(why) or FailureKind.CHECKPOINTS_FAILED
            event = FailureOccurred(cause=why, kind=kind)
            self.fail(event, self._clock.monotonic_ms())

    def on_subtask_failed(self, slot: int, message: Failed) -> None:
        event, now_ms = failure_of(message, slot), self._clock.monotonic_ms()
        lost_output_of = message.lost_output_of
        if lost_output_of is not None:
            self._end.on_output_lost()
        error = message.error
        repeated = None if error is None else self._repeated.on_error(error, now_ms)
        found = self._poison.on_failure(message, repeated)
        if error is not None and isinstance(found, Quarantine):
            self._repeated.on_explained(error)
        match found:
            case Isolate() | Quarantine():
                self._restart.on_progress()
                self.fail(event, now_ms, is_helped=True)
            case LimitReached(limit):
                self.fail(event, now_ms, no_restart=too_many_reason(event, limit))
            case NobodysFault():
                may_pass = self._poison.awaits_more_tries(message, repeated)
                is_fatal = message.is_fatal and not (may_pass or self._goes_back(message))
                no_restart = final_reason(event, repeated, is_fatal=is_fatal)
                why = restart_reason(event, repeated)
                self.fail(event, now_ms, no_restart=no_restart, why_it_restarts=why)
        if lost_output_of is not None:  # now the points are known
            self._attempts.on_output_lost(lost_output_of, message.cause)

    def _goes_back(self, message: Failed) -> bool:
        """Returns True if a slot could not load the starting point and there is another point. Once
        the attempt runs, damage without a known file may be of a later point, so it counts only
        while slots load."""
        file = message.damaged_file
        is_loading = self._record.status is JobStatus.INITIALIZING
        is_of_the_point = file is not None or (message.is_damage and is_loading)
        return is_of_the_point and self._attempts.on_damage_met(file, message.cause)

    def on_peer_lost(self, slot: int, problem: str) -> None:
        cause = f"Slot {slot} lost a data connection: {problem}"
        self._suspect(FailureOccurred(cause=cause, slot=slot, kind=FailureKind.SLOT_LOST))

    def on_stage_ended(self, attempt: Attempt, problem: str) -> None:
        self._attempts.on_stage_ended(attempt)
        if self._attempts.admit(attempt, None) is not None:
            cause = f"The Spark stage of attempt {attempt} ended: {problem or 'without an error'}"
            self._suspect(FailureOccurred(cause=cause, kind=FailureKind.SLOT_LOST))

    def on_time(self, now_ms: float) -> None:
        if self._choice_due_ms is not None and now_ms >= self._choice_due_ms:
            self._recovery.on_waited()
            self._choose_start(delay_ms=0.0)
        self._act_on_suspicion(now_ms)
        self._look_for_silence(now_ms)
        self._look_for_a_standstill(now_ms)

    def _suspect(self, event: FailureOccurred) -> None:
        """Counts `event` as a failure soon, unless the end of a control connection explains it."""
        if self._suspicion is None:
            due_ms = self._clock.monotonic_ms() + SLOT_LOST_GRACE_MS
            self._suspicion = (due_ms, event)

    def _act_on_suspicion(self, now_ms: float) -> None:
        if self._suspicion is not None and now_ms >= self._suspicion[0]:
            self.fail(self._suspicion[1], self._suspicion[0] - SLOT_LOST_GRACE_MS)

    def _look_for_silence(self, now_ms: float) -> None:
        host = self._attempts.host
        if host is None:
            return
        for slot in host.silent_since(now_ms - self._context.settings.heartbeat.timeout_ms):
            self.on_slot_lost(slot, "it has been silent for longer than heartbeat.timeout")
            return

    def _look_for_a_standstill(self, now_ms: float) -> None:
        """Fails an attempt whose start makes no progress. With progress it may take any time."""
        host, waits = self._attempts.host, self._context.settings.recovery
        if host is None or self._record.status is not JobStatus.INITIALIZING:
            return
        still_ms = now_ms - host.moved_ms
        match host.readiness:
            case Readiness.CONNECTING if still_ms > waits.slot_request_timeout_ms:
                cause, kind = self._too_few_slots(host), FailureKind.SLOTS_MISSING
                self.fail(FailureOccurred(cause=cause, kind=kind), host.moved_ms)
            case Readiness.DEPLOYING | Readiness.BEGINNING if still_ms > waits.standstill_ms:
                cause, kind = self._restore_stands_still(host), FailureKind.RESTORE_STOOD_STILL
                self.fail(FailureOccurred(cause=cause, kind=kind), host.moved_ms)

    def _too_few_slots(self, host: AttemptHost) -> str:
        context, waited_ms = self._context, self._context.settings.recovery.slot_request_timeout_ms
        return (
            f"Spark on {context.spec.master} brought up {host.connected_count} of"
            f" {context.slot_count} slots, and no other within {waited_ms / 1000:g} s"
            " (slot.request.timeout)."
        )

    def _restore_stands_still(self, host: AttemptHost) -> str:
        waited_ms, done = self._context.settings.recovery.standstill_ms, host.restoring
        slots = ", ".join(map(str, host.undeployed)) or "all"
        far = "" if done is None else f" at {done.read_files} of {done.total_files} files"
        return (
            f"The restore stood still{far} for {waited_ms / 1000:g} s"
            f" (execution.state-recovery.standstill-timeout); slots that did not end it: {slots}."
        )

    # Consequences.

    def fail(
        self,
        event: FailureOccurred,
        last_sign_of_life_ms: float,
        *,
        no_restart: str | None = None,
        why_it_restarts: str | None = None,
        is_helped: bool = False,
    ) -> None:
        """Handles a failure of the attempt.

        1. Record it. 2. Fence the attempt. 3. Ask the restart strategy, unless no restart can help
        or the next attempt removes the cause (`is_helped`). If `why_it_restarts` is None, the cause
        is the reason."""
        if self._attempts.host is None:
            return
        self._repeated.on_attempt_over(self._clock.monotonic_ms() - self._attempts.began_ms)
        self._record.emit(event)
        self._recovery.on_failure(last_sign_of_life_ms, self._board.reached_records)
        self._suspicion = None
        suspend = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
        self._attempts.end(suspend, event.cause, self._failed_subtasks(event))
        if no_restart is not None:
            self._give_up(no_restart, no_restart)
            return
        if is_helped:
            self._restart_after(0.0, event.cause)
            return
        match self._next_restart(f"{event.kind.value} {event.vertex or ''}"):
            case RestartAfter(delay_ms):
                self._restart_after(delay_ms, why_it_restarts or event.cause)
            case GiveUp(reason):
                self._give_up(reason, f"{event.cause} {reason}")

    def _next_restart(self, cause: str) -> RestartAfter | GiveUp:
        now_ms = self._clock.monotonic_ms()
        return self._restart.on_failure(now_ms, self._draws.uniform(-1, 1), cause)

    def _failed_subtasks(self, event: FailureOccurred) -> frozenset[SubtaskId]:
        """Returns the subtask that reported the failure, or all subtasks of a lost slot."""
        if event.vertex is not None and event.subtask is not None:
            return frozenset({SubtaskId(event.vertex, event.subtask)})
        if event.slot is None:
            return frozenset()
        shapes = self._context.pipeline.graph.shape()
        return frozenset(SubtaskId(shape.uid, event.slot) for shape in shapes)

    def begin_first(self, stages: StageHost) -> None:
        """Raises Rejected if the run cannot start as requested.

        Raises Retryable if the storage does not answer.
        """
        self._counted(lambda: self._attempts.begin_first(stages))

    def begin_when_due(self, now_ms: float) -> None:
        self._counted(lambda: self._attempts.begin_when_due(now_ms))

    def _counted(self, begin: Callable[[], None]) -> None:
        """Counts a source or target that does not answer as a failure, though no slot died. If
        another run has taken a target, it gives up: no restart may take it back."""
        try:
            begin()
        except TargetTaken as error:
            self._record.emit(FailureOccurred(cause=str(error), kind=error.kind))
            self._give_up(str(error), str(error))
        except EndsNotReady as error:
            if self._record.status is JobStatus.CREATED:
                self._record.move_to(JobStatus.INITIALIZING)
            if self._record.status is not JobStatus.RESTARTING:
                self._record.move_to(JobStatus.RESTARTING, str(error))
            self._recovery.on_begin_failed()
            self._ask_again_later(str(error), kind_of(error))

    def _restart_after(self, delay_ms: float, cause: str) -> None:
        self._record.move_to(JobStatus.RESTARTING, cause)
        self._choose_start(delay_ms)

    def _choose_start(self, delay_ms: float) -> None:
        self._choice_due_ms = None
        try:
            self._attempts.restart_after(delay_ms)
        except Rejected as error:
            self._record.emit(FailureOccurred(cause=str(error), kind=kind_of(error)))
            self._give_up(str(error), str(error))
        except Retryable as error:
            cause = f"The point to restart from is unknown: {error}"
            self._ask_again_later(cause, kind_of(error))

    def _ask_again_later(self, cause: str, kind: FailureKind) -> None:
        """Counts as a failure, so that the restart strategy limits how often this repeats."""
        self._record.emit(FailureOccurred(cause=cause, kind=kind))
        match self._next_restart(kind.value):
            case RestartAfter(delay_ms):
                self._choice_due_ms = self._clock.monotonic_ms() + delay_ms
                self._attempts.announce_restart(delay_ms)
                self._recovery.on_wait()
            case GiveUp(reason):
                self._give_up(reason, f"{cause} {reason}")

    def _give_up(self, reason: str, why_it_ended: str) -> None:
        self._record.move_to(JobStatus.FAILING, reason)
        self._record.end(JobStatus.FAILED, self._end.reason_of_failure(why_it_ended))
