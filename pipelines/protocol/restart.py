"""Decides whether a failed run starts again, and after which delay.

Pure: the monotonic time of a failure and the draw for jitter are passed in.
`protocol.repeated_failures` decides whether a restart can help at all.

Source: Flink, `NoRestartBackoffTimeStrategy`, `FixedDelayRestartBackoffTimeStrategy`,
`FailureRateRestartBackoffTimeStrategy`, `ExponentialDelayRestartBackoffTimeStrategy` (FLIP-364).
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from pipelines.domain.errors import check


@dataclass(frozen=True, slots=True)
class RestartAfter:
    delay_ms: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


class RestartBackoff(Protocol):
    """One run's strategy over all its attempts."""

    def on_failure(self, now_ms: float, draw: float) -> RestartAfter | GiveUp:
        """`now_ms` never goes back; `draw` is uniform in -1 to 1 and used where there is jitter."""
        ...

    def on_progress(self) -> None:
        """A checkpoint completed."""
        ...


class NoRestart:
    """The first failure ends the run."""

    def on_failure(self, now_ms: float, draw: float) -> RestartAfter | GiveUp:
        return GiveUp("It is not restarted (restart-strategy.type = none).")

    def on_progress(self) -> None:
        pass


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

    def on_failure(self, now_ms: float, draw: float) -> RestartAfter | GiveUp:
        if self._restarts >= self._attempts:
            return GiveUp(
                f"It failed again after {self._restarts} restarts without a completed checkpoint "
                f"in between (restart-strategy.fixed-delay.attempts = {self._attempts})."
            )
        self._restarts += 1
        return RestartAfter(self._delay_ms)

    def on_progress(self) -> None:
        self._restarts = 0


class FailureRateRestart:
    """Restarts unless more than `max_failures` fell into the last `interval_ms`."""

    def __init__(self, *, max_failures: int, interval_ms: float, delay_ms: float) -> None:
        check(max_failures >= 1 and interval_ms > 0, "a rate counts something over some time")
        check(delay_ms >= 0, "restart bounds are not negative")
        self._max_failures = max_failures
        self._interval_ms = interval_ms
        self._delay_ms = delay_ms
        self._failed_ms: deque[float] = deque(maxlen=max_failures + 1)

    def on_failure(self, now_ms: float, draw: float) -> RestartAfter | GiveUp:
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


class ExponentialDelayRestart:
    """Waits longer after each failure; starts over once a run was stable for long enough.

    A run is stable from the moment a restart was due until the next failure.
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

    def on_failure(self, now_ms: float, draw: float) -> RestartAfter | GiveUp:
        if self._due_ms is not None and now_ms < self._due_ms:
            return RestartAfter(self._due_ms - now_ms)  # belongs to the failure before it
        if self._due_ms is not None and now_ms - self._due_ms >= self._reset_threshold_ms:
            self._restarts, self._backoff_ms = 0, self._initial_ms
        if self._restarts >= self._attempts:
            return GiveUp(
                f"It failed again after {self._restarts} restarts, none of which held for "
                f"{self._reset_threshold_ms / 1000:g} s (restart-strategy.exponential-delay."
                f"attempts-before-reset-backoff = {self._attempts})."
            )
        return self._restart(now_ms, draw)

    def on_progress(self) -> None:
        """Only time resets the backoff, as in Flink."""

    def _restart(self, now_ms: float, draw: float) -> RestartAfter:
        check(-1 <= draw <= 1, "a draw is within its bounds", draw=draw)
        jitter_ms = draw * self._jitter_factor * self._backoff_ms
        delay_ms = min(self._backoff_ms + jitter_ms, self._max_ms)
        self._restarts += 1
        self._backoff_ms = min(self._backoff_ms * self._multiplier, self._max_ms)
        self._due_ms = now_ms + delay_ms
        return RestartAfter(delay_ms)
