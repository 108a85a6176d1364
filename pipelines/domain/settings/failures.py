"""Settings of failures: how they are noticed, and what follows them.

`protocol.restart` carries out the strategies. For records that fail again,
`protocol.repeated_failures` applies the settings.

Source: Flink 2.3, `RestartStrategyOptions`, `HeartbeatManagerOptions`, `StateRecoveryOptions`.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from pipelines.domain.poison import MOST_RECORDS, PoisonPolicy
from pipelines.domain.settings.readers import (
    count_of_at_least,
    count_within,
    duration_of_at_least,
    number_within,
    one_of,
    setting,
)

MIN_TRIES_KEY = "restart-strategy.repeated-failure.min-tries"
MIN_DURATION_KEY = "restart-strategy.repeated-failure.min-duration"
POLICY_KEY = "execution.poison-records.policy"
LIMIT_KEY = "execution.poison-records.limit"
MOST_TRIES = 1_000
GROWING_MAX = 1_000
"""The most waits that are added up one by one."""
_OFF = ("off", "disable")


class RestartStrategy(StrEnum):
    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    EXPONENTIAL_DELAY = "exponential-delay"


class DamagedPointPolicy(StrEnum):
    OLDER = "older"  # go back to the newest point that verifies
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay:
    """Restarts with the same pause each time."""

    attempts: int = setting(
        "restart-strategy.fixed-delay.attempts",
        "1",
        count_of_at_least(0),
        "fixed-delay: restarts without a completed checkpoint in between before the run fails."
        " Flink counts over the whole life of a job.",
    )
    delay_ms: int = setting(
        "restart-strategy.fixed-delay.delay",
        "1 s",
        duration_of_at_least(0),
        "fixed-delay: time to wait before a restart.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Restarts until too many failures fall into one interval."""

    max_failures: int = setting(
        "restart-strategy.failure-rate.max-failures-per-interval",
        "1",
        count_of_at_least(1),
        "failure-rate: failures within the interval that are followed by a restart; one more and"
        " the run fails.",
    )
    interval_ms: int = setting(
        "restart-strategy.failure-rate.failure-rate-interval",
        "1 min",
        duration_of_at_least(1),
        "failure-rate: over how long failures are counted.",
    )
    delay_ms: int = setting(
        "restart-strategy.failure-rate.delay",
        "1 s",
        duration_of_at_least(0),
        "failure-rate: time to wait before a restart.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay:
    """Restarts with pauses that grow while failures continue."""

    initial_ms: int = setting(
        "restart-strategy.exponential-delay.initial-backoff",
        "100 ms",
        duration_of_at_least(1),
        "exponential-delay: time to wait before the first restart. Flink waits 1 s; here a restart"
        " itself takes less than that, so the wait would be most of the outage.",
    )
    max_ms: int = setting(
        "restart-strategy.exponential-delay.max-backoff",
        "1 min",
        duration_of_at_least(1),
        "exponential-delay: the longest time to wait before a restart.",
    )
    multiplier: float = setting(
        "restart-strategy.exponential-delay.backoff-multiplier",
        "1.5",
        number_within(1, 1_000, above_least=True),
        "exponential-delay: how many times longer each wait is than the one before it.",
    )
    reset_threshold_ms: int = setting(
        "restart-strategy.exponential-delay.reset-backoff-threshold",
        "1 h",
        duration_of_at_least(1),
        "exponential-delay: after this long without a failure the wait starts over.",
    )
    jitter_factor: float = setting(
        "restart-strategy.exponential-delay.jitter-factor",
        "0.1",
        number_within(0, 1),
        "exponential-delay: part of the wait that is added or taken away at random, so that runs"
        " that failed together do not restart together.",
    )
    attempts: int = setting(
        "restart-strategy.exponential-delay.attempts-before-reset-backoff",
        "2147483647",
        count_of_at_least(0),
        "exponential-delay: restarts before the run fails, counted until the wait starts over. The"
        " default is no bound, as in Flink.",
    )

    @property
    def waited_ms(self) -> float:
        """The sum of all waits; after many, the backoff is assumed to stop growing."""
        growing, backoff_ms, waited_ms = (
            min(self.attempts, GROWING_MAX),
            float(self.initial_ms),
            0.0,
        )
        for _ in range(growing):
            waited_ms += backoff_ms
            backoff_ms = min(backoff_ms * self.multiplier, self.max_ms)
        return waited_ms + (self.attempts - growing) * backoff_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedFailure:
    """When the same failure at the same record counts as deterministic."""

    tries_min: int = setting(
        MIN_TRIES_KEY,
        "3",
        count_within(2, MOST_TRIES),
        "How often the same failure has to come at the same record before it counts as"
        " deterministic, which ends the run or, with a quarantine, sets the record aside. Both this"
        " and min-duration have to be reached. Ours; Flink restarts as long as its strategy"
        " allows.",
    )
    over_min_ms: int = setting(
        MIN_DURATION_KEY,
        "90 s",
        duration_of_at_least(0),
        "How long the same failure has to keep coming back at the same record before it counts as"
        " deterministic. A service that a function calls fails in the same way while it is away, so"
        " this is the outage that a run survives: the default lasts for one of a minute. If your"
        " functions call nothing outside, make it shorter and learn of a bad record sooner.",
    )


def _read_strategy(text: str) -> RestartStrategy:
    return RestartStrategy.NONE if text.lower() in _OFF else one_of(RestartStrategy)(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartOptions:
    """The response to a failure."""

    strategy: RestartStrategy = setting(
        "restart-strategy.type",
        RestartStrategy.EXPONENTIAL_DELAY,
        _read_strategy,
        "What follows a failure: exponential-delay (as in Flink), fixed-delay, failure-rate, or"
        " none, which lets the run fail. A failure that keeps coming back at the same records ends"
        " the run under every strategy, see restart-strategy.repeated-failure. It also applies with"
        " the interval off, where Flink would not restart: the run restores the newest point that a"
        " person took.",
    )
    fixed_delay: FixedDelay
    failure_rate: FailureRate
    exponential_delay: ExponentialDelay
    repeated_failure: RepeatedFailure

    @property
    def lasts_until_deterministic(self) -> bool:
        """True if the strategy grants enough restarts, and long enough, to find a bad record."""
        restarts, waited_ms = self._granted()
        is_often_enough = restarts >= self.repeated_failure.tries_min - 1
        return is_often_enough and waited_ms >= self.repeated_failure.over_min_ms

    def _granted(self) -> tuple[float, float]:
        """How many restarts in a row, and how long they wait in total, without jitter."""
        match self.strategy:
            case RestartStrategy.NONE:
                return 0, 0.0
            case RestartStrategy.FIXED_DELAY:
                fixed = self.fixed_delay
                return fixed.attempts, float(fixed.attempts * fixed.delay_ms)
            case RestartStrategy.FAILURE_RATE:
                rate = self.failure_rate
                waited_ms = rate.max_failures * rate.delay_ms
                gives_up = waited_ms < rate.interval_ms
                return (rate.max_failures, float(waited_ms)) if gives_up else (math.inf, math.inf)
            case RestartStrategy.EXPONENTIAL_DELAY:
                return self.exponential_delay.attempts, self.exponential_delay.waited_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Signs of life, in both directions between the driver and each slot."""

    interval_ms: int = setting(
        "heartbeat.interval",
        "1 s",
        duration_of_at_least(10),
        "How often driver and slots tell each other that they live. Flink does it every 10 s.",
    )
    timeout_ms: int = setting(
        "heartbeat.timeout",
        "10 s",
        duration_of_at_least(100),
        "A slot that is silent for this long is taken for dead, and a slot whose driver is silent"
        " for this long ends itself. Flink waits 50 s. A killed process is noticed at once by its"
        " closed connection; this is for one that hangs, or that a network cut off. A connection"
        " between slots is given up after the same time without an answer, a second at least.",
    )
    driver_timeout_ms: int = setting(
        "heartbeat.driver-timeout",
        "20 s",
        duration_of_at_least(3_000),
        "A driver that shows no sign of life for this long, or whose control loop makes no progress"
        " for this long, counts as hung. Its slots end themselves, and the control plane kills it"
        " and starts another one from the latest checkpoint. A driver that cannot be killed,"
        " because it runs on another machine or waits for a dead disk, is fenced off: it changes"
        " nothing when it resumes. The control plane never replaces a driver sooner than after"
        " heartbeat.timeout. The default is long enough for a disk that stalls for 10 s. While the"
        " driver starts, loads a recovery point or cleans up, its loop may take up to 10 min"
        " from one file to the next. Flink has no such setting: there the leader election of its"
        " high availability detects it.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """How long an attempt may take to come up, and from which point it starts."""

    slot_request_timeout_ms: int = setting(
        "slot.request.timeout",
        "5 min",
        duration_of_at_least(100),
        "How long an attempt waits for Spark to bring up its next slot before it counts as failed."
        " Make it longer for a cluster that may be full for a while.",
    )
    standstill_ms: int = setting(
        "execution.state-recovery.standstill-timeout",
        "10 min",
        duration_of_at_least(100),
        "Once its slots have connected, an attempt may take as long as it needs to load its state."
        " It counts as failed when none of its slots has read on, opened an operator or committed"
        " what was restored for this long. Flink has no such setting: there a person has to end"
        " a restore that hangs.",
    )
    on_damaged_point: DamagedPointPolicy = setting(
        "execution.state-recovery.on-damaged-point",
        DamagedPointPolicy.OLDER,
        one_of(DamagedPointPolicy),
        "What a recovery does when the newest point does not verify: older goes back to the newest"
        " one that does, and says so; fail ends the run, so that a person decides. Flink fails.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonOptions:
    """The response to a record that fails its operator again and again."""

    policy: PoisonPolicy = setting(
        POLICY_KEY,
        PoisonPolicy.FAIL,
        one_of(PoisonPolicy),
        "What happens when a failure keeps coming back at the same records (how often and for how"
        " long: restart-strategy.repeated-failure). fail: the run ends and names them. quarantine:"
        " the record at fault is found by reading its batch in ever smaller parts, and is set aside"
        " with its position, the error and its values, in a file that is part of the checkpoint;"
        " the run continues with the others. Ours; Flink restarts.",
        changes_live=True,
    )
    limit: int = setting(
        LIMIT_KEY,
        "100",
        count_within(1, MOST_RECORDS),
        "With policy quarantine: the most records that one run sets aside, 1000 at most; one more"
        " and it fails, because a function that fails on everything is no matter of records.",
        changes_live=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeOptions:
    """The conditions for the success of an upgrade to new code."""

    checkpoint_count: int = setting(
        "pipeline.upgrade.checkpoints",
        "3",
        count_of_at_least(1),
        "How many checkpoints the new code has to complete in one attempt before an upgrade has"
        " succeeded. The periodic interval must let them complete within pipeline.upgrade.timeout."
        " Ours; with Flink you watch the new job yourself.",
    )
    timeout_ms: int = setting(
        "pipeline.upgrade.timeout",
        "10 min",
        duration_of_at_least(1_000),
        "How long an upgrade waits for the first checkpoints of the new code, from its start on,"
        " before it goes back to the previous code. Ours.",
    )
