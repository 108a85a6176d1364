"""The rows of the settings table about records that fail again, and what contradicts them.

Part of `setting_table.DEFINITIONS` and of `setting_rules`. What they do: `protocol.poison_records`.
"""

from collections.abc import Collection

from pipelines.domain.poison import MOST_RECORDS, PoisonPolicy
from pipelines.domain.setting_readers import Definition, count_within, one_of
from pipelines.domain.settings import CapAction, CheckpointingMode, RestartStrategy, Settings

POLICY_KEY = "execution.poison-records.policy"
LIMIT_KEY = "execution.poison-records.limit"

QUARANTINE_DEFINITIONS = (
    Definition(
        POLICY_KEY,
        "poison_policy",
        PoisonPolicy.FAIL,
        one_of(PoisonPolicy),
        "What follows when a failure comes back at the same records. fail: the run ends and names"
        " them. quarantine: the record at fault is found by reading its batch in ever smaller"
        " parts, and is set aside with its position, the error and its values, in a file that is"
        " part of the checkpoint; the run goes on with the others. Ours; Flink restarts.",
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
    """A record is at fault when it fails again, at its place in the source."""
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
    is_tried_once = settings.restart_strategy is RestartStrategy.NONE or (
        settings.restart_strategy is RestartStrategy.FIXED_DELAY
        and settings.fixed_delay_attempts == 0
    )
    if is_tried_once:
        return (
            f"{key} needs restarts, as a record is set aside when it fails a second time; set"
            " restart-strategy.type to exponential-delay."
        )
    return None


def limit_needs_quarantine(settings: Settings, given: Collection[str]) -> str | None:
    if LIMIT_KEY not in given or settings.poison_policy is PoisonPolicy.QUARANTINE:
        return None
    return (
        f"{LIMIT_KEY} has no effect with {POLICY_KEY} {settings.poison_policy}, which sets no"
        " record aside; leave it out, or set the policy to quarantine."
    )
