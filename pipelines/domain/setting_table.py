"""The table of all settings: Flink's key, the field it fills, the default and what it means here.

Pages and commands show the help texts as they stand. Where a default differs from Flink's the
help says why. A new setting is a row here, a field of `settings.Settings`, and, where it
contradicts another one, a rule in `setting_rules`.
"""

from pipelines.domain.setting_readers import (
    Definition,
    count_of_at_least,
    duration_of_at_least,
    one_of,
)
from pipelines.domain.settings import CheckpointingMode, RestartStrategy

_CHECKPOINTING = "execution.checkpointing."
_FIXED_DELAY = "restart-strategy.fixed-delay."


def _only_one_at_a_time(text: str) -> int:
    if text != "1":
        raise ValueError("only 1 is supported, checkpoints run one after the other")
    return 1


DEFINITIONS = (
    Definition(
        _CHECKPOINTING + "interval",
        "checkpoint_interval_ms",
        "1 s",
        duration_of_at_least(10),
        "Time from one periodic checkpoint to the next. Flink has no default and so takes none;"
        " here a pipeline without checkpoints is never what was meant.",
    ),
    Definition(
        _CHECKPOINTING + "timeout",
        "checkpoint_timeout_ms",
        "10 min",
        duration_of_at_least(10),
        "A checkpoint or savepoint that is not complete after this time fails.",
    ),
    Definition(
        _CHECKPOINTING + "min-pause",
        "min_pause_ms",
        "0",
        duration_of_at_least(0),
        "Least time from the end of one checkpoint to the start of the next periodic one.",
    ),
    Definition(
        _CHECKPOINTING + "max-concurrent-checkpoints",
        "max_concurrent_checkpoints",
        "1",
        _only_one_at_a_time,
        "How many checkpoints may be under way at once. Only 1 is supported.",
    ),
    Definition(
        _CHECKPOINTING + "tolerable-failed-checkpoints",
        "tolerable_failed_checkpoints",
        "0",
        count_of_at_least(0),
        "Failed checkpoints in a row that are tolerated; one more and the run restarts.",
    ),
    Definition(
        _CHECKPOINTING + "num-retained",
        "retained_checkpoints",
        "3",
        count_of_at_least(1),
        "Completed checkpoints that are kept. Flink keeps 1; with 3, recovery can fall back to an"
        " older one when the files of the newest are damaged.",
    ),
    Definition(
        _CHECKPOINTING + "mode",
        "checkpointing_mode",
        "EXACTLY_ONCE",
        one_of(CheckpointingMode),
        "Whether an operator waits for the barriers of all inputs. Only EXACTLY_ONCE is supported.",
    ),
    Definition(
        "restart-strategy.type",
        "restart_strategy",
        "fixed-delay",
        one_of(RestartStrategy),
        "What follows a failure: fixed-delay restarts, none lets the run fail. Flink's default,"
        " exponential-delay, is not supported.",
    ),
    Definition(
        _FIXED_DELAY + "attempts",
        "restart_attempts",
        "10",
        count_of_at_least(0),
        "Restarts before the run fails. Flink allows 1, so a second machine lost in the same week"
        " ends the run; 10 lets a long run live and still ends one that cannot.",
    ),
    Definition(
        _FIXED_DELAY + "delay",
        "restart_delay_ms",
        "100 ms",
        duration_of_at_least(0),
        "Time to wait before a restart. Flink waits 1 s; here a restart itself takes less than"
        " that, so the wait would be most of the outage.",
    ),
    Definition(
        "heartbeat.timeout",
        "heartbeat_timeout_ms",
        "10 s",
        duration_of_at_least(100),
        "A slot that is silent for this long is taken for dead. Flink waits 50 s. A killed process"
        " is noticed at once by its closed connection; this is for one that hangs.",
    ),
)
