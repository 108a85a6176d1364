"""Decides the states of a run, and if, when and from which point a failed one starts again.

Pure: the monotonic time of a failure and the draw for jitter are passed in. One table lists the
moves between the states. `protocol.repeated_failures` decides whether a restart can help at all.
`choose_point` goes through the retained points, newest first, and takes the first that the host's
verification finds whole. `RecoveryProgress` turns moments into the phases that the dashboard shows,
each exactly once and in order.

Source: Flink, `JobStatus`, the transitions of `ExecutionGraph`, `NoRestartBackoffTimeStrategy`,
`FixedDelayRestartBackoffTimeStrategy`, `FailureRateRestartBackoffTimeStrategy` and
`ExponentialDelayRestartBackoffTimeStrategy` (FLIP-364).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pipelines.domain.errors import check
from pipelines.domain.status import JobStatus, RecoveryPhase
from pipelines.protocol.retention import RetainedPoint


@dataclass(frozen=True, slots=True)
class RestartAfter:
    delay_ms: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


class RestartBackoff(Protocol):
    """One run's strategy over all its attempts."""

    def on_failure(self, now_ms: float, draw: float, cause: str = "") -> RestartAfter | GiveUp:
        """`now_ms` never goes back; `draw` is uniform in -1 to 1 and used where there is jitter.

        `cause` is the same for failures that belong together.
        """
        ...

    def on_progress(self) -> None:
        """A checkpoint completed."""
        ...

    def on_retried(self, now_ms: float) -> None:
        """A person asked for the attempt that is due to begin at once."""
        ...

    def next_delay_ms(self, now_ms: float) -> float | None:
        """Returns about how long a failure now would delay it; None if it would not restart."""
        ...


class NoRestart:
    """The first failure ends the run."""

    def on_failure(self, now_ms: float, draw: float, cause: str = "") -> RestartAfter | GiveUp:
        return GiveUp("It is not restarted (restart-strategy.type = none).")

    def on_progress(self) -> None:
        pass

    def on_retried(self, now_ms: float) -> None:
        pass

    def next_delay_ms(self, now_ms: float) -> float | None:
        return None


class FixedDelayRestart:
    """At most `attempts` restarts since the last checkpoint that completed.

    Flink counts over the whole life of a job; a stream that runs for months would then die of
    unrelated failures, so progress resets the count here.
    """

    def __init__(self, *, attempts: int, delay_ms: float) -> None:
        check(attempts >= 0 and delay_ms >= 0, "restart bounds are not negative")
        self._attempts = attempts
        self._delay_ms = delay_ms
        self._restarts = 0

    def on_failure(self, now_ms: float, draw: float, cause: str = "") -> RestartAfter | GiveUp:
        if self._restarts >= self._attempts:
            return GiveUp(
                f"It failed again after {self._restarts} restarts without a completed checkpoint "
                f"in between (restart-strategy.fixed-delay.attempts = {self._attempts})."
            )
        self._restarts += 1
        return RestartAfter(self._delay_ms)

    def on_progress(self) -> None:
        self._restarts = 0

    def on_retried(self, now_ms: float) -> None:
        """The attempt counts, whenever it begins."""

    def next_delay_ms(self, now_ms: float) -> float | None:
        return None if self._restarts >= self._attempts else self._delay_ms

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        restarts = self._restarts
        check(0 <= restarts <= self._attempts, "restarts are bounded", restarts=restarts)


class FailureRateRestart:
    """Restarts unless more than `max_failures` fell into the last `interval_ms`."""

    def __init__(self, *, max_failures: int, interval_ms: float, delay_ms: float) -> None:
        check(max_failures >= 1 and interval_ms > 0, "a rate counts something over some time")
        check(delay_ms >= 0, "restart bounds are not negative")
        self._max_failures = max_failures
        self._interval_ms = interval_ms
        self._delay_ms = delay_ms
        self._failed_ms: deque[float] = deque(maxlen=max_failures + 1)

    def on_failure(self, now_ms: float, draw: float, cause: str = "") -> RestartAfter | GiveUp:
        self._failed_ms.append(now_ms)
        is_full = len(self._failed_ms) > self._max_failures
        if is_full and now_ms - self._failed_ms[0] < self._interval_ms:
            return GiveUp(
                f"It failed {len(self._failed_ms)} times within {self._interval_ms / 1000:g} s "
                "(restart-strategy.failure-rate.max-failures-per-interval = "
                f"{self._max_failures})."
            )
        return RestartAfter(self._delay_ms)

    def on_progress(self) -> None:
        """A rate depends on time only."""

    def on_retried(self, now_ms: float) -> None:
        """The failure counts, whenever the attempt after it begins."""

    def next_delay_ms(self, now_ms: float) -> float | None:
        newest = [*self._failed_ms, now_ms][-self._max_failures - 1 :]
        gives_up = len(newest) > self._max_failures and now_ms - newest[0] < self._interval_ms
        return None if gives_up else self._delay_ms

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        moments = list(self._failed_ms)
        check(moments == sorted(moments), "failures are in the order of time", moments=moments)


CURED_AFTER = 3
"""This many checkpoints after a restart show that its cause is gone: the incident is over."""


class ExponentialDelayRestart:
    """Waits longer after each failure; starts over once a run was stable for long enough.

    A run is stable from the moment a restart was due until the next failure. It also starts over at
    a failure of another cause, if `CURED_AFTER` checkpoints have completed since the last restart:
    the rest of one incident's backoff then delays no unrelated failure. Flink looks only at time.
    """

    def __init__(
        self,
        *,
        initial_ms: float,
        max_ms: float,
        multiplier: float,
        reset_threshold_ms: float,
        jitter_factor: float,
        attempts: int,
    ) -> None:
        check(0 < initial_ms <= max_ms, "the backoff grows from a positive one to the largest")
        check(multiplier > 1, "a backoff grows", multiplier=multiplier)
        check(reset_threshold_ms > 0 and attempts >= 0, "restart bounds are not negative")
        check(0 <= jitter_factor <= 1, "jitter is a part of the backoff", factor=jitter_factor)
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._multiplier = multiplier
        self._reset_threshold_ms = reset_threshold_ms
        self._jitter_factor = jitter_factor
        self._attempts = attempts
        self._restarts = 0  # since the last reset
        self._backoff_ms = initial_ms  # of the next restart, without jitter
        self._due_ms: float | None = None  # when the newest restart was or is due
        self._cause = ""  # of the newest restart
        self._completed = 0  # checkpoints since the newest restart

    def on_failure(self, now_ms: float, draw: float, cause: str = "") -> RestartAfter | GiveUp:
        if self._due_ms is not None and now_ms < self._due_ms:
            return RestartAfter(self._due_ms - now_ms)  # belongs to the failure before it
        if self._was_stable(now_ms) or self._is_unrelated(cause):
            self._restarts, self._backoff_ms = 0, self._initial_ms
        self._cause, self._completed = cause, 0
        if self._restarts >= self._attempts:
            return GiveUp(
                f"It failed again after {self._restarts} restarts, none of which held for "
                f"{self._reset_threshold_ms / 1000:g} s (restart-strategy.exponential-delay."
                f"attempts-before-reset-backoff = {self._attempts})."
            )
        return self._restart(now_ms, draw)

    def on_progress(self) -> None:
        """Resets nothing by itself: failures between checkpoints may belong to one incident."""
        self._completed += 1

    def on_retried(self, now_ms: float) -> None:
        """Forgets when the restart was due, so that the next failure counts as a new one."""
        if self._due_ms is not None:
            self._due_ms = min(self._due_ms, now_ms)

    def next_delay_ms(self, now_ms: float) -> float | None:
        """Assumes the same cause as the last failure had, which gives the longer delay."""
        if self._due_ms is not None and now_ms < self._due_ms:
            return self._due_ms - now_ms
        if self._was_stable(now_ms):
            return self._initial_ms if self._attempts else None
        return self._backoff_ms if self._restarts < self._attempts else None

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        restarts, backoff_ms = self._restarts, self._backoff_ms
        check(0 <= restarts <= self._attempts, "restarts are bounded", restarts=restarts)
        is_bounded = self._initial_ms <= backoff_ms <= self._max_ms
        check(is_bounded, "the backoff is within its bounds", backoff_ms=backoff_ms)
        check(not restarts or self._due_ms is not None, "a restart has its moment")

    def _was_stable(self, now_ms: float) -> bool:
        return self._due_ms is not None and now_ms - self._due_ms >= self._reset_threshold_ms

    def _is_unrelated(self, cause: str) -> bool:
        return cause != self._cause and self._completed >= CURED_AFTER

    def _restart(self, now_ms: float, draw: float) -> RestartAfter:
        check(-1 <= draw <= 1, "a draw is within its bounds", draw=draw)
        jitter_ms = draw * self._jitter_factor * self._backoff_ms
        delay_ms = min(self._backoff_ms + jitter_ms, self._max_ms)
        self._restarts += 1
        self._backoff_ms = min(self._backoff_ms * self._multiplier, self._max_ms)
        self._due_ms = now_ms + delay_ms
        return RestartAfter(delay_ms)


@dataclass(frozen=True, slots=True)
class RefusedPoint:
    point: RetainedPoint
    problem: str


@dataclass(frozen=True, slots=True)
class Choice:
    """`point` is None: start from the beginning, because no point was ever completed."""

    point: RetainedPoint | None
    refused: tuple[RefusedPoint, ...]


@dataclass(frozen=True, slots=True)
class NoUsablePoint:
    """Points exist and none verifies: starting afresh would double output, so the run must not."""

    refused: tuple[RefusedPoint, ...]


def choose_point(
    newest_first: list[RetainedPoint],
    problem_of: Callable[[RetainedPoint], str | None],
    *,
    may_fall_back: bool = True,
) -> Choice | NoUsablePoint:
    """`problem_of` verifies one point: it returns a sentence, or None if the point is whole."""
    refused: list[RefusedPoint] = []
    for point in newest_first:
        problem = problem_of(point)
        if problem is None:
            return Choice(point, tuple(refused))
        refused.append(RefusedPoint(point, problem))
        if not may_fall_back:
            break
    return NoUsablePoint(tuple(refused)) if refused else Choice(None, ())


STEPS = (
    RecoveryPhase.DETECT,
    RecoveryPhase.DECIDE,
    RecoveryPhase.STOP,
    RecoveryPhase.BACKOFF,
    RecoveryPhase.START,
    RecoveryPhase.RESTORE,
)
MILESTONES = frozenset(RecoveryPhase) - frozenset(STEPS)


@dataclass(slots=True)
class RecoveryProgress:
    """The phases of one recovery.

    Steps follow each other; each lasts from the end of the one before it, minus the waits in
    between. The backoff lasts as long as all waits together.

    Milestones come after the last step, in any order; each lasts from the end of that step.
    """

    _last_ms: float
    _steps: list[RecoveryPhase] = field(default_factory=list)
    _milestones: set[RecoveryPhase] = field(default_factory=set)
    _waited_ms: float = 0.0  # not yet reported as backoff
    _waits_since_ms: float | None = None

    @property
    def is_running(self) -> bool:
        """True once all subtasks run again; only milestones are left."""
        return len(self._steps) == len(STEPS)

    def expects(self, phase: RecoveryPhase) -> bool:
        if phase in MILESTONES:
            return self.is_running and phase not in self._milestones
        return not self.is_running and STEPS[len(self._steps)] is phase

    def on_wait(self, now_ms: float) -> None:
        """The recovery waits on purpose from now on. Nothing changes if it already does."""
        if self._waits_since_ms is None:
            self._waits_since_ms = max(now_ms, self._last_ms)

    def on_waited(self, now_ms: float) -> None:
        """The recovery continues. Nothing changes if it did not wait."""
        if self._waits_since_ms is None:
            return
        waited_ms = max(0.0, now_ms - self._waits_since_ms)
        self._waits_since_ms = None
        self._waited_ms += waited_ms
        self._last_ms += waited_ms

    def on_reached(self, phase: RecoveryPhase, now_ms: float) -> float:
        """Returns how long the phase took. Raises InvariantViolated if it is not expected."""
        check(self.expects(phase), "phases come in order, each once", phase=phase)
        if phase is RecoveryPhase.BACKOFF:
            self._steps.append(phase)
            return self._waited_ms
        duration_ms = now_ms - self._last_ms
        if phase in MILESTONES:
            self._milestones.add(phase)
        else:
            self._steps.append(phase)
            self._last_ms = now_ms
        return duration_ms

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        steps = tuple(self._steps)
        check(steps == STEPS[: len(steps)], "steps come in order, each once", steps=steps)
        check(self.is_running or not self._milestones, "milestones follow the last step")
        check(self._milestones <= MILESTONES, "a step is no milestone", found=self._milestones)
        check(self._waited_ms >= 0, "a wait lasts", waited_ms=self._waited_ms)


_S = JobStatus
MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    _S.CREATED: frozenset({_S.INITIALIZING, _S.CANCELLING, _S.FAILING}),
    # A run finishes from here if it only had to commit what its final point had prepared.
    _S.INITIALIZING: frozenset({_S.RUNNING, _S.RESTARTING, _S.CANCELLING, _S.FAILING, _S.FINISHED}),
    _S.RUNNING: frozenset({_S.RESTARTING, _S.CANCELLING, _S.FAILING, _S.FINISHED}),
    _S.RESTARTING: frozenset({_S.INITIALIZING, _S.CANCELLING, _S.FAILING}),
    _S.CANCELLING: frozenset({_S.CANCELED}),
    _S.FAILING: frozenset({_S.FAILED}),
    _S.CANCELED: frozenset(),
    _S.FAILED: frozenset(),
    _S.FINISHED: frozenset(),
}


class JobState:
    """Guarantee: only moves in the table happen; anything else raises and changes nothing."""

    def __init__(self) -> None:
        self._status = JobStatus.CREATED

    @property
    def status(self) -> JobStatus:
        return self._status

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        check(self._status in MOVES, "a run is in a state of the table", status=self._status)

    def move_to(self, status: JobStatus) -> None:
        """Raises InvariantViolated for a move that is not in the table."""
        check(status in MOVES[self._status], "a legal move", current=self._status, to=status)
        self._status = status
