"""The rows of the settings table about records that fail again, and their contradictions.

Part of `setting_table.DEFINITIONS` and `setting_rules`. `protocol.poison_records` applies them.

The rows of the settings table about following every record, under Storm's names.

Part of `setting_table.DEFINITIONS`. `protocol.acking` and `protocol.spout` explain them.
Source: Storm, `org.apache.storm.Config`.
"""

import math
from collections.abc import Collection

from pipelines.domain.poison import MOST_RECORDS, PoisonPolicy
from pipelines.domain.settings import CapAction, CheckpointingMode, RestartStrategy, Settings
from pipelines.domain.settings.readers import Definition, count_within, one_of
from pipelines.domain.settings.recovery_settings import MIN_DURATION_KEY, MIN_TRIES_KEY

POLICY_KEY = "execution.poison-records.policy"
LIMIT_KEY = "execution.poison-records.limit"
GROWING_MAX = 1_000
"""The most waits that are added up one by one."""

QUARANTINE_DEFINITIONS = (
    Definition(
        POLICY_KEY,
        "poison_policy",
        PoisonPolicy.FAIL,
        one_of(PoisonPolicy),
        "What follows when a failure keeps coming back at the same records (how often and for how"
        " long: restart-strategy.repeated-failure). fail: the run ends and names them. quarantine:"
        " the record at fault is found by reading its batch in ever smaller parts, and is set aside"
        " with its position, the error and its values, in a file that is part of the checkpoint;"
        " the run goes on with the others. Ours; Flink restarts.",
    ),
    Definition(
        LIMIT_KEY,
        "poison_limit",
        "100",
        count_within(1, MOST_RECORDS),
        "With policy quarantine: the most records that one run sets aside, 1000 at most; one more"
        " and it fails, because a function that fails on everything is no matter of records.",
    ),
)


def quarantine_needs_a_second_try(settings: Settings) -> str | None:
    """A record is at fault if it fails again, at its place in the source."""
    if settings.poison_policy is not PoisonPolicy.QUARANTINE:
        return None
    key, mode = f"{POLICY_KEY} quarantine", settings.checkpointing_mode
    if mode not in (CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE):
        return (
            f"{key} needs execution.checkpointing.mode EXACTLY_ONCE or AT_LEAST_ONCE, not {mode},"
            " which does not go back to where a record failed with all that came of it."
        )
    if settings.unaligned or settings.cap_action is CapAction.UNALIGNED:
        return (
            f"{key} needs barriers that overtake nothing: a record in flight that a checkpoint"
            " keeps is not read from its source again; set"
            " execution.checkpointing.unaligned.enabled to false, and"
            " execution.checkpointing.alignment-buffer.when-exceeded to wait or abort."
        )
    if not _lasts_until_deterministic(settings):
        return (
            f"{key} needs restarts until a failure counts as deterministic: {MIN_TRIES_KEY} is"
            f" {settings.repeated_failure_tries} and {MIN_DURATION_KEY} is"
            f" {settings.repeated_failure_ms} ms, and restart-strategy.type"
            f" {settings.restart_strategy} may give up before; set it to exponential-delay, or"
            " lower those two."
        )
    return None


def _lasts_until_deterministic(settings: Settings) -> bool:
    """True if the strategy grants enough restarts, and long enough, to find a bad record."""
    restarts, waited_ms = _granted(settings)
    is_often_enough = restarts >= settings.repeated_failure_tries - 1
    return is_often_enough and waited_ms >= settings.repeated_failure_ms


def _granted(settings: Settings) -> tuple[float, float]:
    """How many restarts in a row, and how long they wait in total, without jitter."""
    match settings.restart_strategy:
        case RestartStrategy.NONE:
            return 0, 0.0
        case RestartStrategy.FIXED_DELAY:
            restarts = settings.fixed_delay_attempts
            return restarts, float(restarts * settings.fixed_delay_ms)
        case RestartStrategy.FAILURE_RATE:
            restarts = settings.failure_rate_max_failures
            waited_ms = restarts * settings.failure_rate_delay_ms
            gives_up = waited_ms < settings.failure_rate_interval_ms
            return (restarts, float(waited_ms)) if gives_up else (math.inf, math.inf)
        case RestartStrategy.EXPONENTIAL_DELAY:
            return settings.attempts_before_reset_backoff, _backed_off_ms(settings)


def _backed_off_ms(settings: Settings) -> float:
    """The sum of all waits; after many, the backoff is assumed to stop growing."""
    restarts = settings.attempts_before_reset_backoff
    backoff_ms = float(settings.initial_backoff_ms)
    growing, waited_ms = min(restarts, GROWING_MAX), 0.0
    for _ in range(growing):
        waited_ms += backoff_ms
        backoff_ms = min(backoff_ms * settings.backoff_multiplier, settings.max_backoff_ms)
    return waited_ms + (restarts - growing) * backoff_ms


def limit_needs_quarantine(settings: Settings, given: Collection[str]) -> str | None:
    if LIMIT_KEY not in given or settings.poison_policy is PoisonPolicy.QUARANTINE:
        return None
    return (
        f"{LIMIT_KEY} has no effect with {POLICY_KEY} {settings.poison_policy}, which sets no"
        " record aside; leave it out, or set the policy to quarantine."
    )


PREFIX = "topology."
_MOST_ACKERS = 1_000
_MOST_SECONDS = 24 * 3_600
_MOST_PENDING = 10_000_000

ACKING_DEFINITIONS = (
    Definition(
        PREFIX + "acker.executors",
        "acker_count",
        "1",
        count_within(0, _MOST_ACKERS),
        "With mode ACKED: how many ackers follow the trees of records; each has a thread of its own"
        " in a slot, and they share the trees. 0: no acker follows them; a record counts as"
        " processed once it is emitted, and none is emitted again while the run goes on. Storm"
        " starts one per worker.",
    ),
    Definition(
        PREFIX + "message.timeout.secs",
        "message_timeout_s",
        "30",
        count_within(1, _MOST_SECONDS),
        "With mode ACKED: for so many seconds, and at most half as long again, a source waits for"
        " all that descends from a record to be processed; then it emits the record again.",
    ),
    Definition(
        PREFIX + "max.spout.pending",
        "spout_pending_max",
        "100000",
        count_within(1, _MOST_PENDING),
        "With mode ACKED: the most records of one subtask of a source that may be in flight, not"
        " processed and not given up; it emits no more until some are. Storm has no bound by"
        " default.",
    ),
)
