"""Every served metric: its name, type, labels and help. Measures nothing.

The `flink_` metrics are those of Flink's Prometheus reporter, which exports counters and meters as
gauges. We serve those that our runs report; a metric that would always be zero here, or mean
something else, is left out. The `ftdash_` metrics are those that Flink does not have.

Source: Flink, `PrometheusReporter`, and the names of its metrics as documented for 2.x.
"""

from dataclasses import dataclass

JOB_LABELS = ("host", "job_id", "job_name")
TASK_LABELS = (
    "host",
    "job_id",
    "job_name",
    "subtask_index",
    "task_attempt_id",
    "task_attempt_num",
    "task_id",
    "task_name",
    "tm_id",
)
OPERATOR_LABELS = (*TASK_LABELS, "operator_id", "operator_name")
RUN_LABELS = ("pipeline", "run")
SUBTASK_LABELS = (*RUN_LABELS, "operator", "subtask")
METRIC_LABELS = (*SUBTASK_LABELS, "name")


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    help: str
    labels: tuple[str, ...]
    is_counter: bool = False


def _of_flink(scope: str, metrics: tuple[str, ...], labels: tuple[str, ...]) -> list[Family]:
    return [
        Family(f"flink_{scope}_{metric}", f"{metric} (scope: {scope})", labels)
        for metric in metrics
    ]


def _of_ours(name: str, description: str, *labels: str) -> Family:
    is_counter = name.endswith("_total")
    return Family(f"ftdash_{name}", description, labels, is_counter)


JOB = _of_flink(
    "jobmanager_job",
    (
        "totalNumberOfCheckpoints",
        "numberOfInProgressCheckpoints",
        "numberOfCompletedCheckpoints",
        "numberOfFailedCheckpoints",
        "lastCompletedCheckpointId",
        "lastCheckpointCompletedTimestamp",
        "lastCheckpointDuration",
        "lastCheckpointSize",
        "lastCheckpointFullSize",
        "lastCheckpointPersistedData",
        "lastCheckpointRestoreTimestamp",
        "numRestarts",
        "uptime",
        "downtime",
        "deployingTime",
        "runningTime",
        "restartingTime",
        "failingTime",
    ),
    JOB_LABELS,
)
TASK = _of_flink(
    "taskmanager_job_task",
    (
        "busyTimeMsPerSecond",
        "backPressuredTimeMsPerSecond",
        "idleTimeMsPerSecond",
        "accumulateBusyTimeMs",
        "accumulateBackPressuredTimeMs",
        "accumulateIdleTimeMs",
        "numRecordsIn",
        "numRecordsOut",
        "numRecordsInPerSecond",
        "numRecordsOutPerSecond",
        "numBytesIn",
        "numBytesOut",
        "numBytesInPerSecond",
        "numBytesOutPerSecond",
        "currentInputWatermark",
        "checkpointAlignmentTime",
        "checkpointStartDelayNanos",
    ),
    TASK_LABELS,
)
TASK_INPUT = _of_flink(
    "taskmanager_job_task_Shuffle_Netty_Input_Buffers", ("inputQueueSize",), TASK_LABELS
)
OPERATOR = _of_flink(
    "taskmanager_job_task_operator", ("currentOutputWatermark", "pendingRecords"), OPERATOR_LABELS
)
FLINK_JOB_LABELS = ("cluster", "job_id", "job_name")
OURS = [
    _of_ours("process_up", "Whether one of our own processes has given a sign of life.", "process"),
    _of_ours("open_requests", "Requests that are not done yet.", "pipeline"),
    _of_ours("pipeline_state", "1 for the state that the newest run is in.", "pipeline", "state"),
    _of_ours("report_age_seconds", "Since the driver last said anything.", *RUN_LABELS),
    _of_ours(
        "since_completed_checkpoint_seconds",
        "Since a checkpoint last completed; absent before the first.",
        *RUN_LABELS,
    ),
    _of_ours(
        "since_committed_output_seconds",
        "Since the sinks last committed output; absent before the first time.",
        *RUN_LABELS,
    ),
    _of_ours(
        "commit_wait_seconds",
        "Since the oldest completed checkpoint was triggered that waits for its commit; 0: none.",
        *RUN_LABELS,
    ),
    _of_ours("records_read_per_second", "Read by all sources over the last second.", *RUN_LABELS),
    _of_ours(
        "records_to_replay",
        "About what would be read again if the run died now.",
        *RUN_LABELS,
    ),
    _of_ours(
        "last_recovery_seconds",
        "The newest recovery, from the failure until all subtasks ran again.",
        *RUN_LABELS,
    ),
    _of_ours(
        "last_recovery_phase_seconds", "One phase of the newest recovery.", *RUN_LABELS, "phase"
    ),
    _of_ours("refused_zombies_total", "What older attempts tried and were refused.", *RUN_LABELS),
    _of_ours("refused_points_total", "Recovery points that did not verify.", *RUN_LABELS),
    _of_ours(
        "quarantined_records_total", "Records that no operator is given any more.", *RUN_LABELS
    ),
    _of_ours(
        "checkpoint_failures_total", "Failed checkpoints by Flink's reason.", *RUN_LABELS, "reason"
    ),
    _of_ours(
        "last_checkpoint_buffered_records",
        "Held back while the newest completed checkpoint aligned.",
        *RUN_LABELS,
    ),
    _of_ours(
        "last_checkpoint_buffered_bytes",
        "Held back while the newest completed checkpoint aligned.",
        *RUN_LABELS,
    ),
    _of_ours(
        "operator_count",
        "What an operator counts about its records; a recovery sets it back.",
        *RUN_LABELS,
        "operator",
        "counter",
    ),
    _of_ours("queued_records", "What waits in front of a subtask.", *SUBTASK_LABELS),
    _of_ours("state_bytes", "State of a subtask, as it last said.", *SUBTASK_LABELS),
    _of_ours(
        "user_counter",
        "A counter of a function. It may go down, and begins at 0 with each attempt.",
        *METRIC_LABELS,
    ),
    _of_ours("user_gauge", "A gauge of a function.", *METRIC_LABELS),
    _of_ours(
        "user_histogram_count",
        "How many values a histogram of a function was given since the attempt began.",
        *METRIC_LABELS,
    ),
    _of_ours(
        "user_histogram",
        "The newest values of a histogram of a function: min, max, mean, p50, p95 or p99.",
        *METRIC_LABELS,
        "statistic",
    ),
    _of_ours("slot_resident_bytes", "Memory of the process of a slot.", *RUN_LABELS, "slot"),
    _of_ours("query_state", "1 for the state that a watched query is in.", "query", "state"),
    _of_ours(
        "query_since_committed_batch_seconds",
        "Since a watched query last committed a batch; absent before the first.",
        "query",
    ),
    _of_ours(
        "query_since_data_seconds",
        "Since a batch of a watched query last had rows; absent before the first.",
        "query",
    ),
    _of_ours("query_batch_seconds", "The newest batch of a watched query.", "query"),
    _of_ours("query_input_rows_per_second", "What arrived for the newest batch.", "query"),
    _of_ours("query_processed_rows_per_second", "What the newest batch could process.", "query"),
    _of_ours("query_restarts_total", "Restarts of a watched query.", "query"),
    _of_ours("query_dropped_events_total", "Events that listeners dropped.", "query"),
    _of_ours(
        "query_incident", "1 while a watched query has an incident of a cause.", "query", "cause"
    ),
    _of_ours("query_savepoints", "Savepoints of a watched query that are kept.", "query"),
    _of_ours(
        "query_checkpoint_errors",
        "Errors that the doctor found in the checkpoint directory.",
        "query",
    ),
    _of_ours("flink_cluster_up", "Whether a watched Flink cluster answers.", "cluster"),
    _of_ours(
        "flink_cluster_since_heard_seconds", "Since a watched cluster last answered.", "cluster"
    ),
    _of_ours(
        "flink_job_state",
        "1 for the state that a job of a watched cluster is in; STALE: it may be another by now.",
        *FLINK_JOB_LABELS,
        "state",
    ),
    _of_ours(
        "flink_job_since_completed_checkpoint_seconds",
        "Since a job of a watched cluster last completed a checkpoint; absent before the first.",
        *FLINK_JOB_LABELS,
    ),
    _of_ours(
        "flink_job_last_checkpoint_seconds",
        "How long the newest completed checkpoint took.",
        *FLINK_JOB_LABELS,
    ),
    _of_ours(
        "flink_job_last_checkpoint_state_bytes",
        "The state in the newest completed checkpoint.",
        *FLINK_JOB_LABELS,
    ),
    _of_ours("flink_job_restarts_total", "Restarts, as Flink counts them.", *FLINK_JOB_LABELS),
    _of_ours(
        "flink_job_failed_checkpoints_total",
        "Failed checkpoints, as Flink counts them.",
        *FLINK_JOB_LABELS,
    ),
    _of_ours(
        "flink_incident",
        "1 while a watched cluster (no job) or one of its jobs has an incident of a cause.",
        *FLINK_JOB_LABELS,
        "cause",
    ),
]
FAMILIES = {each.name: each for each in (*JOB, *TASK, *TASK_INPUT, *OPERATOR, *OURS)}


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured value of a family. `labels` are all labels of the family."""

    family: Family
    labels: dict[str, str]
    value: float
