"""The rows of the settings table about following every record, under Storm's names.

Part of `setting_table.DEFINITIONS`. `protocol.acking` and `protocol.spout` explain them.
Source: Storm, `org.apache.storm.Config`.
"""

from pipelines.domain.setting_readers import Definition, count_within

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
        " in a slot, and they share the trees. 0: nobody follows them; a record counts as processed"
        " once it is emitted, and none is emitted again while the run goes on. Storm starts one per"
        " worker.",
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
