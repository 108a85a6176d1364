"""The rows of the settings table about failures: how they are noticed, and what follows them.

Part of `table.DEFINITIONS`. `protocol.restart` carries out the strategies. For records that fail
again, `protocol.repeated_failures` applies the settings. For mode ACKED, which follows every record
under Storm's names, `protocol.acking` and `protocol.spout` explain them.

Source: Flink 2.3; Storm, `org.apache.storm.Config`.
"""

import math
from collections.abc import Collection

from pipelines.domain.faults import parse_faults
from pipelines.domain.poison import MOST_RECORDS, PoisonPolicy
from pipelines.domain.settings import (
    CapAction,
    CheckpointingMode,
    DamagedPointPolicy,
    RestartStrategy,
    Settings,
)
from pipelines.domain.settings.readers import (
    Definition,
    SettingValue,
    count_of_at_least,
    count_within,
    duration_of_at_least,
    number_within,
    one_of,
    true_or_false,
)

_FIXED_DELAY = "restart-strategy.fixed-delay."
_FAILURE_RATE = "restart-strategy.failure-rate."
_EXPONENTIAL = "restart-strategy.exponential-delay."
_REPEATED = "restart-strategy.repeated-failure."
MIN_TRIES_KEY = _REPEATED + "min-tries"
MIN_DURATION_KEY = _REPEATED + "min-duration"
MOST_TRIES = 1_000
_OFF = ("off", "disable")
_strategy = one_of(RestartStrategy)


def _read_strategy(text: str) -> SettingValue:
    return RestartStrategy.NONE if text.lower() in _OFF else _strategy(text)


def _read_faults(text: str) -> str:
    parse_faults(text)
    return text


RECOVERY_DEFINITIONS = (
    Definition(
        "restart-strategy.type",
        "restart_strategy",
        RestartStrategy.EXPONENTIAL_DELAY,
        _read_strategy,
        "What follows a failure: exponential-delay (as in Flink), fixed-delay, failure-rate, or"
        " none, which lets the run fail. A failure that keeps coming back at the same records ends"
        " the run under every strategy, see restart-strategy.repeated-failure. It also"
        " applies with the interval off, where Flink would not restart: the run restores the newest"
        " point that a person took.",
    ),
    Definition(
        _FIXED_DELAY + "attempts",
        "fixed_delay_attempts",
        "1",
        count_of_at_least(0),
        "fixed-delay: restarts without a completed checkpoint in between before the run fails."
        " Flink counts over the whole life of a job.",
    ),
    Definition(
        _FIXED_DELAY + "delay",
        "fixed_delay_ms",
        "1 s",
        duration_of_at_least(0),
        "fixed-delay: time to wait before a restart.",
    ),
    Definition(
        _FAILURE_RATE + "max-failures-per-interval",
        "failure_rate_max_failures",
        "1",
        count_of_at_least(1),
        "failure-rate: failures within the interval that are followed by a restart; one more and"
        " the run fails.",
    ),
    Definition(
        _FAILURE_RATE + "failure-rate-interval",
        "failure_rate_interval_ms",
        "1 min",
        duration_of_at_least(1),
        "failure-rate: over how long failures are counted.",
    ),
    Definition(
        _FAILURE_RATE + "delay",
        "failure_rate_delay_ms",
        "1 s",
        duration_of_at_least(0),
        "failure-rate: time to wait before a restart.",
    ),
    Definition(
        _EXPONENTIAL + "initial-backoff",
        "initial_backoff_ms",
        "100 ms",
        duration_of_at_least(1),
        "exponential-delay: time to wait before the first restart. Flink waits 1 s; here a restart"
        " itself takes less than that, so the wait would be most of the outage.",
    ),
    Definition(
        _EXPONENTIAL + "max-backoff",
        "max_backoff_ms",
        "1 min",
        duration_of_at_least(1),
        "exponential-delay: the longest time to wait before a restart.",
    ),
    Definition(
        _EXPONENTIAL + "backoff-multiplier",
        "backoff_multiplier",
        "1.5",
        number_within(1, 1_000, above_least=True),
        "exponential-delay: how many times longer each wait is than the one before it.",
    ),
    Definition(
        _EXPONENTIAL + "reset-backoff-threshold",
        "reset_backoff_threshold_ms",
        "1 h",
        duration_of_at_least(1),
        "exponential-delay: after this long without a failure the wait starts over.",
    ),
    Definition(
        _EXPONENTIAL + "jitter-factor",
        "backoff_jitter_factor",
        "0.1",
        number_within(0, 1),
        "exponential-delay: part of the wait that is added or taken away at random, so that runs"
        " that failed together do not restart together.",
    ),
    Definition(
        _EXPONENTIAL + "attempts-before-reset-backoff",
        "attempts_before_reset_backoff",
        "2147483647",
        count_of_at_least(0),
        "exponential-delay: restarts before the run fails, counted until the wait starts over."
        " The default is no bound, as in Flink.",
    ),
    Definition(
        MIN_TRIES_KEY,
        "repeated_failure_tries",
        "3",
        count_within(2, MOST_TRIES),
        "How often the same failure has to come at the same record before it counts as"
        " deterministic, which ends the run or, with a quarantine, sets the record aside. Both this"
        " and min-duration have to be reached. Ours; Flink restarts as long as its strategy"
        " allows.",
    ),
    Definition(
        MIN_DURATION_KEY,
        "repeated_failure_ms",
        "90 s",
        duration_of_at_least(0),
        "How long the same failure has to keep coming back at the same record before it counts as"
        " deterministic. A service that a function calls fails in the same way while it is away,"
        " so this is the outage that a run survives: the default lasts for one of a minute. If"
        " your functions call nothing outside, make it shorter and learn of a bad record sooner.",
    ),
    Definition(
        "heartbeat.interval",
        "heartbeat_interval_ms",
        "1 s",
        duration_of_at_least(10),
        "How often driver and slots tell each other that they live. Flink does it every 10 s.",
    ),
    Definition(
        "heartbeat.timeout",
        "heartbeat_timeout_ms",
        "10 s",
        duration_of_at_least(100),
        "A slot that is silent for this long is taken for dead, and a slot whose driver is silent"
        " for this long ends itself. Flink waits 50 s. A killed process is noticed at once by its"
        " closed connection; this is for one that hangs, or that a network cut off. A connection"
        " between slots is given up after the same time without an answer, a second at least.",
    ),
    Definition(
        "heartbeat.driver-timeout",
        "driver_timeout_ms",
        "20 s",
        duration_of_at_least(3_000),
        "A driver that shows no sign of life for this long, or whose control loop stands still for"
        " this long, counts as hung. Its slots end themselves, and the control plane kills it and"
        " starts another one from the latest checkpoint. A driver that cannot be killed, because it"
        " runs on another machine or waits for a dead disk, is fenced off: it changes nothing when"
        " it goes on. The control plane never replaces a driver sooner than after"
        " heartbeat.timeout. The default is long enough for a disk that stalls for 10 s. While the"
        " driver starts, loads a recovery point or cleans up, its loop may stand still for 10 min"
        " from one file to the next. Flink has no such setting: there the leader election of its"
        " high availability finds out.",
    ),
    Definition(
        "slot.request.timeout",
        "slot_request_timeout_ms",
        "5 min",
        duration_of_at_least(100),
        "How long an attempt waits for Spark to bring up its next slot before it counts as failed."
        " Make it longer for a cluster that may be full for a while.",
    ),
    Definition(
        "execution.state-recovery.standstill-timeout",
        "restore_standstill_ms",
        "10 min",
        duration_of_at_least(100),
        "Once its slots have connected, an attempt may take as long as it needs to load its state."
        " It counts as failed when none of its slots has read on, opened an operator or committed"
        " what was restored for this long. Flink has no such setting: there a restore that hangs"
        " is ended by a person.",
    ),
    Definition(
        "execution.checkpointing.verification-interval",
        "verification_interval_ms",
        "1 h",
        duration_of_at_least(0),
        "How often every byte of the retained points is read and compared with its digest, so that"
        " a damaged point is known before a recovery needs it; 0 turns it off. Flink has no such"
        " setting: it finds out when it restores.",
    ),
    Definition(
        "execution.state-recovery.on-damaged-point",
        "on_damaged_point",
        DamagedPointPolicy.OLDER,
        one_of(DamagedPointPolicy),
        "What a recovery does when the newest point does not verify: older goes back to the newest"
        " one that does, and says so; fail ends the run, so that a person decides. Flink fails.",
    ),
    Definition(
        "testing.faults",
        "faults",
        "",
        _read_faults,
        "Kills, stops or fails processes of the run on purpose at named points, for tests; only"
        " where the pipeline allows faults. Example: kill uploading slot=1 nth=2; kill published.",
    ),
)


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

UPGRADE_DEFINITIONS = (
    Definition(
        "pipeline.upgrade.checkpoints",
        "upgrade_checkpoints",
        "3",
        count_of_at_least(1),
        "How many checkpoints the new code has to complete in one attempt before an upgrade has"
        " succeeded. The periodic interval must let them complete within pipeline.upgrade.timeout."
        " Ours; with Flink you watch the new job yourself.",
    ),
    Definition(
        "pipeline.upgrade.timeout",
        "upgrade_timeout_ms",
        "10 min",
        duration_of_at_least(1_000),
        "How long an upgrade waits for the first checkpoints of the new code, from its start on,"
        " before it goes back to the code before. Ours.",
    ),
)

FAILURE_DEFINITIONS = (
    Definition(
        "pipeline.failures.show-records",
        "shows_failed_records",
        "false",
        true_or_false,
        "true: when a function fails at a record, the recovery page shows the record's values, cut"
        " to 2,000 characters; columns and values that look like secrets are masked. false: it"
        " shows the record's source, split and offset. Off by default: records may hold personal"
        " data, and they would be kept in the journal, in the database and in backups. The text of"
        " an exception is always shown, so do not put values into it. Ours.",
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
