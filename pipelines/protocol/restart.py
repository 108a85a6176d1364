"""Whether a failed run starts again, and after which delay.

Pure. Source: Flink, `FixedDelayRestartBackoffTimeStrategy`.
"""

from dataclasses import dataclass

from pipelines.domain.errors import check


@dataclass(frozen=True, slots=True)
class RestartAfter:
    delay_ms: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


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

    def on_failure(self) -> RestartAfter | GiveUp:
        if self._restarts >= self._attempts:
            return GiveUp(
                f"It failed again after {self._restarts} restarts without a completed checkpoint "
                f"in between (restart-strategy.fixed-delay.attempts = {self._attempts})."
            )
        self._restarts += 1
        return RestartAfter(self._delay_ms)

    def on_progress(self) -> None:
        """A checkpoint completed."""
        self._restarts = 0
