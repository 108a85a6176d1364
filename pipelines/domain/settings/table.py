"""The table of all settings: Flink's key, the field it fills, the default and what it means here.

Pages and commands show the help texts unchanged. If a default differs from Flink's, the help says
why. A new setting is a row here, a field of `settings.Settings`, and, if it contradicts another
setting, a rule in `parsing`.
"""

from pipelines.domain.guarantees import REQUIRED_KEY
from pipelines.domain.settings import (
    CapAction,
    CheckpointingMode,
    ExternalizedRetention,
    RequiredGuarantee,
)
from pipelines.domain.settings.readers import (
    Definition,
    count_of_at_least,
    duration_of_at_least,
    duration_or_off,
    memory_of_at_least,
    no_size_or,
    one_of,
    true_or_false,
)
from pipelines.domain.settings.recovery_settings import (
    ACKING_DEFINITIONS,
    FAILURE_DEFINITIONS,
    QUARANTINE_DEFINITIONS,
    RECOVERY_DEFINITIONS,
    UPGRADE_DEFINITIONS,
)
from pipelines.domain.settings.resource_settings import (
    NETWORK_DEFINITIONS,
    STATE_DEFINITIONS,
    STORAGE_DEFINITIONS,
)

_CHECKPOINTING = "execution.checkpointing."


DEFINITIONS = (
    Definition(
        _CHECKPOINTING + "interval",
        "checkpoint_interval_ms",
        "1 s",
        duration_or_off(10),
        "Time from one periodic checkpoint to the next; the first one comes at a moment drawn"
        " between min-pause and this. off: ftdash takes only savepoints, checkpoints that a person"
        " requests and the final one, and a failure restores the newest of them. Flink is off by"
        " default; here a pipeline without checkpoints is rarely what was meant.",
        changes_live=True,
    ),
    Definition(
        _CHECKPOINTING + "timeout",
        "checkpoint_timeout_ms",
        "10 min",
        duration_of_at_least(10),
        "A checkpoint or savepoint that is not complete after this time fails.",
        changes_live=True,
    ),
    Definition(
        _CHECKPOINTING + "min-pause",
        "min_pause_ms",
        "0",
        duration_of_at_least(0),
        "Least time from the end of one checkpoint to the start of the next periodic one. Needs"
        " max-concurrent-checkpoints = 1.",
        changes_live=True,
    ),
    Definition(
        _CHECKPOINTING + "max-concurrent-checkpoints",
        "max_concurrent_checkpoints",
        "1",
        count_of_at_least(1),
        "How many checkpoints may be under way at once. A savepoint does not wait for a place.",
    ),
    Definition(
        _CHECKPOINTING + "tolerable-failed-checkpoints",
        "tolerable_failed_checkpoints",
        "0",
        count_of_at_least(0),
        "Failed checkpoints in a row that are tolerated; one more and the run restarts. As in Flink"
        " a checkpoint counts that expired, that a subtask or the storage failed, or that could not"
        " be started; a savepoint only when a subtask failed it.",
        changes_live=True,
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
        _CHECKPOINTING + "externalized-checkpoint-retention",
        "retention",
        ExternalizedRetention.RETAIN_ON_CANCELLATION,
        one_of(ExternalizedRetention),
        "What the end of a run leaves of its checkpoints; savepoints always stay, and a run that"
        " finished leaves none. RETAIN_ON_CANCELLATION: those of a cancelled or failed run stay."
        " DELETE_ON_CANCELLATION: those of a failed run stay. NO_EXTERNALIZED_CHECKPOINTS: none,"
        " which is Flink's default; here a run that was cancelled by mistake can be restored.",
    ),
    Definition(
        _CHECKPOINTING + "checkpoints-after-tasks-finish",
        "allows_finished_sources",
        "true",
        true_or_false,
        "Whether checkpoints go on when some subtasks of the sources have read everything. false:"
        " none is taken until all have, then the final one.",
    ),
    Definition(
        _CHECKPOINTING + "mode",
        "checkpointing_mode",
        "EXACTLY_ONCE",
        one_of(CheckpointingMode),
        "EXACTLY_ONCE: an operator with several inputs holds each back behind its barrier until all"
        " have come, so every record counts once. AT_LEAST_ONCE: operators only count barriers and"
        " hold nothing back; after a failure some records count twice. AT_MOST_ONCE (ours): after a"
        " failure the run goes on without its state, behind everything that its sources may have"
        " emitted: some records are lost, none counts twice. Sources read ahead and emit what a"
        " completed checkpoint has reserved, so nothing comes out before the first one. A point"
        " that a person asks to restore is restored with its state. ACKED (as in Storm): ackers"
        " follow every record; a source emits it again until all that descends from it is"
        " processed, and after a failure goes on at the oldest record that is not. State is in no"
        " checkpoint and begins empty after a failure; records may come twice.",
    ),
    Definition(
        REQUIRED_KEY,
        "required_guarantee",
        "none",
        one_of(RequiredGuarantee),
        "The least that the pipeline must guarantee from end to end: AT_MOST_ONCE, AT_LEAST_ONCE,"
        " IDEMPOTENT (exact again when the checkpoint after a failure completes) or EXACTLY_ONCE."
        " ftdash computes what sources, mode and sinks give, and refuses a run that gives less"
        " before it starts, with the reason. none: nothing is required.",
    ),
    Definition(
        _CHECKPOINTING + "at-most-once.read-ahead",
        "read_ahead_bytes",
        "256 mb",
        memory_of_at_least(1 << 10),
        "With mode AT_MOST_ONCE: the most that a subtask of a source reads ahead, and so emits from"
        " one checkpoint to the next; it is also the most that its failure loses, besides what was"
        " on its way. A subtask that has read half as much since a checkpoint asks for the next; a"
        " new one asks with its first record, and then with twice as many each time."
        " Ours; Flink has no such mode.",
    ),
    Definition(
        _CHECKPOINTING + "unaligned.enabled",
        "unaligned",
        "false",
        true_or_false,
        "true: barriers may overtake records, which the checkpoint keeps, so that it completes"
        " while downstream is slow. Savepoints and the final checkpoint align all the same.",
    ),
    Definition(
        _CHECKPOINTING + "aligned-checkpoint-timeout",
        "aligned_timeout_ms",
        "0",
        duration_of_at_least(0),
        "With unaligned checkpoints: a checkpoint aligns for this long after its trigger; only"
        " then do its barriers overtake. 0: they overtake from the start.",
    ),
    Definition(
        _CHECKPOINTING + "alignment-buffer.max-size-per-channel",
        "channel_cap_bytes",
        "0",
        no_size_or(memory_of_at_least(1 << 10)),
        "The most that one input of a subtask may hold back while the others' barriers are awaited;"
        " 0: no cap. In any case it holds at most 8 mb and one batch: then its writer waits. Ours;"
        " Flink has no cap any more.",
    ),
    Definition(
        _CHECKPOINTING + "alignment-buffer.max-size-per-subtask",
        "subtask_cap_bytes",
        "0",
        no_size_or(memory_of_at_least(1 << 10)),
        "The same for all inputs of a subtask together.",
    ),
    Definition(
        _CHECKPOINTING + "alignment-buffer.when-exceeded",
        "cap_action",
        "wait",
        one_of(CapAction),
        "wait: the checkpoint goes on and shows which subtasks exceeded the cap. unaligned: its"
        " barriers start to overtake (a savepoint waits). abort: the subtask declines the"
        " checkpoint and says so downstream at once.",
    ),
    *ACKING_DEFINITIONS,
    *RECOVERY_DEFINITIONS,
    *QUARANTINE_DEFINITIONS,
    *UPGRADE_DEFINITIONS,
    *FAILURE_DEFINITIONS,
    *STATE_DEFINITIONS,
    *STORAGE_DEFINITIONS,
    *NETWORK_DEFINITIONS,
)
