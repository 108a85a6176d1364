"""Settings of checkpoints: when they are taken and kept, and what barriers and ackers do.

`protocol.triggering`, `protocol.retention` and `protocol.alignment` carry them out. For mode ACKED,
which follows every record and has settings under Storm's names, `protocol.acking` does.

Source: Flink 2.3, `CheckpointingOptions`; Storm, `org.apache.storm.Config`.
"""

from dataclasses import dataclass
from enum import StrEnum

from pipelines.domain.settings.readers import (
    count_of_at_least,
    count_within,
    duration_of_at_least,
    duration_or_off,
    memory_of_at_least,
    no_size_or,
    one_of,
    setting,
    true_or_false,
)

RETENTION_KEY = "execution.checkpointing.externalized-checkpoint-retention"
READ_AHEAD_KEY = "execution.checkpointing.at-most-once.read-ahead"
ACKING_PREFIX = "topology."
_MOST_ACKERS = 1_000
_MOST_SECONDS = 24 * 3_600
_MOST_PENDING = 10_000_000


class CheckpointingMode(StrEnum):
    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    AT_MOST_ONCE = "AT_MOST_ONCE"
    ACKED = "ACKED"


class CapAction(StrEnum):
    """The action if more is held back than the cap allows."""

    WAIT = "wait"
    UNALIGNED = "unaligned"
    ABORT = "abort"


class ExternalizedRetention(StrEnum):
    """The ends of a run that leave its checkpoints in place; the names are Flink's."""

    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointingOptions:
    """When checkpoints are taken, how many, and which of them stay."""

    interval_ms: int | None = setting(
        "execution.checkpointing.interval",
        "1 s",
        duration_or_off(10),
        "Time from one periodic checkpoint to the next; the first one comes at a moment drawn"
        " between min-pause and this. off: ftdash takes only savepoints, checkpoints that a person"
        " requests and the final one, and a failure restores the newest of them. Flink is off by"
        " default; here a pipeline without checkpoints is rarely what was meant.",
        changes_live=True,
    )
    timeout_ms: int = setting(
        "execution.checkpointing.timeout",
        "10 min",
        duration_of_at_least(10),
        "A checkpoint or savepoint that is not complete after this time fails.",
        changes_live=True,
    )
    min_pause_ms: int = setting(
        "execution.checkpointing.min-pause",
        "0",
        duration_of_at_least(0),
        "Least time from the end of one checkpoint to the start of the next periodic one. Needs"
        " max-concurrent-checkpoints = 1.",
        changes_live=True,
    )
    max_concurrent: int = setting(
        "execution.checkpointing.max-concurrent-checkpoints",
        "1",
        count_of_at_least(1),
        "How many checkpoints may be under way at once. A savepoint does not wait for a place.",
    )
    tolerable_failures: int = setting(
        "execution.checkpointing.tolerable-failed-checkpoints",
        "0",
        count_of_at_least(0),
        "Failed checkpoints in a row that are tolerated; one more and the run restarts. As in Flink"
        " a checkpoint counts that expired, that a subtask or the storage failed, or that could not"
        " be started; a savepoint only when a subtask failed it.",
        changes_live=True,
    )
    retained_count: int = setting(
        "execution.checkpointing.num-retained",
        "3",
        count_of_at_least(1),
        "Completed checkpoints that are kept. Flink keeps 1; with 3, recovery can fall back to an"
        " older one when the files of the newest are damaged.",
    )
    retention: ExternalizedRetention = setting(
        RETENTION_KEY,
        ExternalizedRetention.RETAIN_ON_CANCELLATION,
        one_of(ExternalizedRetention),
        "What the end of a run leaves of its checkpoints; savepoints always stay, and a run that"
        " finished leaves none. RETAIN_ON_CANCELLATION: those of a cancelled or failed run stay."
        " DELETE_ON_CANCELLATION: those of a failed run stay. NO_EXTERNALIZED_CHECKPOINTS: none,"
        " which is Flink's default; here a run that was cancelled by mistake can be restored.",
    )
    allows_finished_sources: bool = setting(
        "execution.checkpointing.checkpoints-after-tasks-finish",
        "true",
        true_or_false,
        "Whether checkpoints continue once some subtasks of the sources have read everything."
        " false: none is taken until all have, then the final one.",
    )
    verification_interval_ms: int = setting(
        "execution.checkpointing.verification-interval",
        "1 h",
        duration_of_at_least(0),
        "How often every byte of the retained points is read and compared with its digest, so that"
        " a damaged point is known before a recovery needs it; 0 turns it off. Flink has no such"
        " setting: it finds out when it restores.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierOptions:
    """How the subtasks of a run treat barriers; every slot gets them."""

    mode: CheckpointingMode = setting(
        "execution.checkpointing.mode",
        "EXACTLY_ONCE",
        one_of(CheckpointingMode),
        "EXACTLY_ONCE: an operator with several inputs holds each back behind its barrier until all"
        " have come, so every record counts once. AT_LEAST_ONCE: operators only count barriers and"
        " hold nothing back; after a failure some records count twice. AT_MOST_ONCE (ours): after a"
        " failure the run continues without its state, after everything that its sources may have"
        " emitted: some records are lost, none counts twice. Sources read ahead and emit what a"
        " completed checkpoint has reserved, so nothing comes out before the first one. A point"
        " that a person asks to restore is restored with its state. ACKED (as in Storm): ackers"
        " follow every record; a source emits it again until every record derived from it is"
        " processed, and after a failure continues at the oldest record that is not. State is in no"
        " checkpoint and begins empty after a failure; records may come twice.",
    )
    unaligned: bool = setting(
        "execution.checkpointing.unaligned.enabled",
        "false",
        true_or_false,
        "true: barriers may overtake records, which the checkpoint keeps, so that it completes"
        " while downstream is slow. Savepoints and the final checkpoint align all the same.",
    )
    aligned_timeout_ms: int = setting(
        "execution.checkpointing.aligned-checkpoint-timeout",
        "0",
        duration_of_at_least(0),
        "With unaligned checkpoints: a checkpoint aligns for this long after its trigger; only then"
        " do its barriers overtake. 0: they overtake from the start.",
    )
    channel_cap_bytes: int = setting(
        "execution.checkpointing.alignment-buffer.max-size-per-channel",
        "0",
        no_size_or(memory_of_at_least(1 << 10)),
        "The most that one input of a subtask may hold back while the others' barriers are awaited;"
        " 0: no cap. In any case it holds at most 8 mb and one batch: then its writer waits. Ours;"
        " Flink no longer has a cap.",
    )
    subtask_cap_bytes: int = setting(
        "execution.checkpointing.alignment-buffer.max-size-per-subtask",
        "0",
        no_size_or(memory_of_at_least(1 << 10)),
        "The same for all inputs of a subtask together.",
    )
    cap_action: CapAction = setting(
        "execution.checkpointing.alignment-buffer.when-exceeded",
        "wait",
        one_of(CapAction),
        "wait: the checkpoint continues and shows which subtasks exceeded the cap. unaligned: its"
        " barriers start to overtake (a savepoint waits). abort: the subtask declines the"
        " checkpoint and says so downstream at once.",
    )
    read_ahead_bytes: int = setting(
        READ_AHEAD_KEY,
        "256 mb",
        memory_of_at_least(1 << 10),
        "With mode AT_MOST_ONCE: the most that a subtask of a source reads ahead, and so emits from"
        " one checkpoint to the next. Its failure loses no more than that, and records in flight."
        " A subtask that has read half as much since a checkpoint asks for the next; a"
        " new one asks with its first record, and then with twice as many each time. Ours; Flink"
        " has no such mode.",
    )


def _seconds_as_ms(text: str) -> int:
    return 1_000 * count_within(1, _MOST_SECONDS)(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class AckingOptions:
    """How the subtasks of a run in mode ACKED follow records; every slot gets them."""

    acker_count: int = setting(
        "topology.acker.executors",
        "1",
        count_within(0, _MOST_ACKERS),
        "With mode ACKED: how many ackers follow the trees of records; each has a thread of its own"
        " in a slot, and they share the trees. 0: no acker follows them; a record counts as"
        " processed once it is emitted, and none is emitted again while the run continues. Storm"
        " starts one per worker.",
    )
    timeout_ms: int = setting(
        "topology.message.timeout.secs",
        "30",
        _seconds_as_ms,
        "With mode ACKED: for so many seconds, and at most half as long again, a source waits until"
        " every record derived from a record is processed; then it emits the record again.",
    )
    pending_max: int = setting(
        "topology.max.spout.pending",
        "100000",
        count_within(1, _MOST_PENDING),
        "With mode ACKED: the most records of one subtask of a source that may be in flight, not"
        " processed and not given up; it emits no more until some are. Storm has no bound by"
        " default.",
    )
