"""The findings of the doctor: the cost of each, and what to do next.

One table, so that pages, documentation and tests name the same kinds. Pure.
"""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"  # the query does not start, or its result is wrong
    WARNING = "warning"  # it will hurt, or a recovery point is lost
    NOTE = "note"  # worth knowing


class Kind(StrEnum):
    METADATA_MISSING = "metadata-missing"
    METADATA_DAMAGED = "metadata-damaged"
    OFFSETS_MISSING = "offsets-missing"
    COMMITS_MISSING = "commits-missing"
    OFFSETS_GAP = "offsets-gap"
    COMMITS_GAP = "commits-gap"
    COMMIT_WITHOUT_OFFSET = "commit-without-offset"
    SEVERAL_UNCOMMITTED = "several-uncommitted"
    BATCH_STUCK = "batch-stuck"
    LOG_FILE_EMPTY = "log-file-empty"
    LOG_FILE_TORN = "log-file-torn"
    UNKNOWN_VERSION = "unknown-version"
    CHECKSUM_MISMATCH = "checksum-mismatch"
    STATE_FILE_DAMAGED = "state-file-damaged"
    OPERATOR_UNREADABLE = "operator-unreadable"
    SCHEMA_MISSING = "schema-missing"
    PARTITION_MISSING = "partition-missing"
    PARTITION_EXTRA = "partition-extra"
    NEWEST_STATE_MISSING = "newest-state-missing"
    STATE_MISSING = "state-missing"
    LONG_RESTORE = "long-restore"
    ABANDONED_STATE = "abandoned-state"
    MIXED_TIMELINES = "mixed-timelines"
    PARTITIONS_DIFFER = "partitions-differ"
    STORE_CHANGED = "store-changed"
    UNIQUE_IDS_MISSING = "unique-ids-missing"
    STATE_GROWS = "state-grows"
    SOURCES_CHANGED = "sources-changed"
    OFFSETS_BACKWARDS = "offsets-backwards"
    SOURCE_LOG_MISSING = "source-log-missing"
    SOURCE_LOG_GAP = "source-log-gap"
    SOURCE_LOG_AHEAD = "source-log-ahead"
    SOURCE_LOG_LARGE = "source-log-large"
    SOURCE_LOST = "source-lost"
    SOURCE_RESET = "source-reset"
    SINK_LOG_AHEAD = "sink-log-ahead"
    SINK_LOG_GAP = "sink-log-gap"
    SINK_LOG_LARGE = "sink-log-large"
    SMALL_FILES = "small-files"
    TIME_BACKWARDS = "time-backwards"
    WATERMARK_BACKWARDS = "watermark-backwards"
    WATERMARK_STANDS_STILL = "watermark-stands-still"
    SLOW_BATCHES = "slow-batches"
    ROWS_DROPPED = "rows-dropped"
    PARTITIONS_SETTING_IGNORED = "partitions-setting-ignored"
    PARTITIONS_SETTING_CHANGED = "partitions-setting-changed"
    LEFTOVER_FILES = "leftover-files"
    STRANGE_FILES = "strange-files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`text` says what was found and where; each text is one or two sentences."""

    kind: Kind
    severity: Severity
    text: str
    cost: str
    next_step: str
    batch_id: int | None = None
    path: str = ""


def finding(kind: Kind, text: str, *, batch_id: int | None = None, path: str = "") -> Finding:
    severity, cost, next_step = MEANINGS[kind]
    return Finding(
        kind=kind,
        severity=severity,
        text=text,
        cost=cost,
        next_step=next_step,
        batch_id=batch_id,
        path=path,
    )


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
_FORK = "Fork the query from the newest complete recovery point."
_RESTORE = "Restore the file from a savepoint or a backup, or fork from a complete recovery point."
_WAIT = "Wait for the next look; if it stays, "

MEANINGS: dict[Kind, tuple[Severity, str, str]] = {
    Kind.METADATA_MISSING: (
        _E,
        "A restart gives the query a new id; sinks that remember the old id write batches twice.",
        'Write the old id back, as {"id": "..."}; the log of the driver and progress events have'
        " it.",
    ),
    Kind.METADATA_DAMAGED: (_E, "The query does not start.", "Write the id of the query back."),
    Kind.OFFSETS_MISSING: (
        _E,
        "A restart begins at batch 0 over the state of later batches: the result is wrong.",
        _RESTORE,
    ),
    Kind.COMMITS_MISSING: (
        _E,
        "A restart does not know which batches ended, and runs the newest one again.",
        _RESTORE,
    ),
    Kind.OFFSETS_GAP: (_E, "The query refuses to start.", _FORK),
    Kind.COMMITS_GAP: (_E, "The query may refuse to start.", _FORK),
    Kind.COMMIT_WITHOUT_OFFSET: (
        _E,
        "A restart plans the batch again over state that has it already: rows count twice.",
        _RESTORE,
    ),
    Kind.SEVERAL_UNCOMMITTED: (
        _E,
        "A restart runs only the newest of them: the input of the others is lost or counts twice.",
        _FORK,
    ),
    Kind.BATCH_STUCK: (
        _W,
        "Nothing comes out meanwhile, and the lag grows.",
        "Look at the running tasks of the query, or restart it: the batch runs again.",
    ),
    Kind.LOG_FILE_EMPTY: (
        _E,
        "The query does not start if the batch is its newest; the batch is no recovery point.",
        _RESTORE,
    ),
    Kind.LOG_FILE_TORN: (
        _E,
        "The query does not start if the batch is its newest; the batch is no recovery point.",
        _RESTORE,
    ),
    Kind.UNKNOWN_VERSION: (
        _E,
        "This Spark cannot read the file; a newer one may have written it.",
        "Use the Spark version that wrote the checkpoint.",
    ),
    Kind.CHECKSUM_MISMATCH: (
        _E,
        "Spark refuses to read the file, or reads altered state.",
        _RESTORE,
    ),
    Kind.STATE_FILE_DAMAGED: (
        _E,
        "No batch that needs the file can be restored.",
        _RESTORE,
    ),
    Kind.OPERATOR_UNREADABLE: (
        _W,
        "State cannot be browsed, and the operator cannot be compared with changed code.",
        _RESTORE,
    ),
    Kind.SCHEMA_MISSING: (
        _W,
        "Spark no longer notices that changed code reads the state with another schema.",
        "Restore the file from a savepoint before you change the code.",
    ),
    Kind.PARTITION_MISSING: (
        _E,
        "The query fails at its first batch, or begins that partition empty.",
        _RESTORE,
    ),
    Kind.PARTITION_EXTRA: (
        _W,
        "The query never reads that state: keys in it are lost.",
        "Find out if two queries wrote here, or if the partitions were changed by hand.",
    ),
    Kind.NEWEST_STATE_MISSING: (
        _E,
        "The query fails when it starts its next batch.",
        _FORK,
    ),
    Kind.STATE_MISSING: (
        _W,
        "You cannot go back to these batches.",
        "Take a savepoint of a complete batch. If you deleted no files, check the storage.",
    ),
    Kind.LONG_RESTORE: (
        _W,
        "A restart reads all these changes before the first row.",
        "Check that the maintenance of state runs, and lower"
        " spark.sql.streaming.stateStore.minDeltasForSnapshot.",
    ),
    Kind.ABANDONED_STATE: (
        _E,
        "State of a timeline that was rewound by hand: Spark loads it when the query reaches that"
        " version, so old keys come back and new ones are lost, without an error.",
        "Stop the query, and fork it from a recovery point instead.",
    ),
    Kind.MIXED_TIMELINES: (
        _E,
        "State of an abandoned timeline lies among that of the present one: the result may hold"
        " keys that never came, and lack others.",
        "Fork from a batch before the mixture, and let the input run again.",
    ),
    Kind.PARTITIONS_DIFFER: (
        _E,
        "The query looks for its keys in partitions that hold others.",
        "Set spark.sql.shuffle.partitions in the checkpoint back to that of the state.",
    ),
    Kind.STORE_CHANGED: (
        _E,
        "The state was written by another store, and cannot be read by this one.",
        "Start with the store that wrote the state.",
    ),
    Kind.UNIQUE_IDS_MISSING: (
        _E,
        "The query cannot tell which of its state files belong to the batch.",
        _FORK,
    ),
    Kind.STATE_GROWS: (
        _N,
        "Memory, restores and savepoints grow with it.",
        "Check that the query has a watermark or timeouts that delete old keys.",
    ),
    Kind.SOURCES_CHANGED: (
        _E,
        "Offsets go to sources by position: they may reach the wrong one, or the query fails late.",
        "Keep the number and the order of the sources, or start with a new checkpoint.",
    ),
    Kind.OFFSETS_BACKWARDS: (
        _E,
        "Rows between the two offsets are processed twice.",
        "Find out if the topic was created again or if the offsets were edited.",
    ),
    Kind.SOURCE_LOG_MISSING: (
        _E,
        "The query cannot find the files of a planned batch, and skips them without an error.",
        _RESTORE,
    ),
    Kind.SOURCE_LOG_GAP: (_E, "The query does not start, or reads files twice.", _RESTORE),
    Kind.SOURCE_LOG_AHEAD: (
        _E,
        "A rewind by hand left the later files in the log: the next batch takes all of them at"
        " once.",
        "Fork the query from a recovery point: its log is rewound with it.",
    ),
    Kind.SOURCE_LOG_LARGE: (
        _W,
        "Each compaction reads and writes all of it, and the driver holds it in memory.",
        "Start a new checkpoint over an archive of old input, or read a table format instead.",
    ),
    Kind.SOURCE_LOST: (
        _E,
        "The source no longer has what these batches read next: they cannot be restored without"
        " a loss.",
        "Raise the retention of the source; restore a newer batch, or accept the loss.",
    ),
    Kind.SOURCE_RESET: (
        _E,
        "The source ends before the offsets of the query: it was emptied or created again.",
        "Start with a new checkpoint, or restore the topic.",
    ),
    Kind.SINK_LOG_AHEAD: (
        _E,
        "The sink takes the next batches for known ones and drops their rows without an error.",
        "Fork the query with a new output, or with its log rewound.",
    ),
    Kind.SINK_LOG_GAP: (
        _E,
        "Readers of the output miss the files of these batches, or fail.",
        _RESTORE,
    ),
    Kind.SINK_LOG_LARGE: (
        _W,
        "Each compaction and each reader goes through all of it.",
        "Set the option retention of the file sink, or write to a table format.",
    ),
    Kind.SMALL_FILES: (
        _W,
        "Readers spend their time on opening files.",
        "Use a longer trigger interval or fewer partitions, or compact the output.",
    ),
    Kind.TIME_BACKWARDS: (
        _W,
        "Timers of processing time fire late, and times on pages are out of order.",
        "Check the clocks of the machines that run the driver.",
    ),
    Kind.WATERMARK_BACKWARDS: (
        _E,
        "State that was deleted is needed again: late rows count in new windows.",
        _FORK,
    ),
    Kind.WATERMARK_STANDS_STILL: (
        _W,
        "Windows do not close, and state is not deleted.",
        "Find the source or the partition without new event time; look at the policy for several"
        " watermarks.",
    ),
    Kind.SLOW_BATCHES: (
        _W,
        "The query falls behind its trigger, and the lag may grow.",
        "Give it more cores or a longer trigger, or limit the rows of a batch.",
    ),
    Kind.ROWS_DROPPED: (
        _W,
        "These rows are in no result.",
        "Give the watermark a longer delay, or find out why the rows come late.",
    ),
    Kind.PARTITIONS_SETTING_IGNORED: (
        _N,
        "The number of partitions comes from the checkpoint, so your setting has no effect.",
        "Repartition the state on a fork, or start with a new checkpoint.",
    ),
    Kind.PARTITIONS_SETTING_CHANGED: (
        _W,
        "The query finds its keys in other partitions, unless its state was repartitioned.",
        "Check that Spark's repartition made this change, not a person by hand.",
    ),
    Kind.LEFTOVER_FILES: (
        _N,
        "They take space; they were left by writes that did not end.",
        "Delete them while the query is stopped.",
    ),
    Kind.STRANGE_FILES: (
        _N,
        "No query reads them; names that are no numbers can stop a purge.",
        "Move them away, after you have found out who wrote them.",
    ),
}
