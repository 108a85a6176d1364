"""Bodies about checkpoints, as Flink 2.3 sends them: in snake case, with nulls where unknown.

Source: Flink, `org.apache.flink.runtime.rest.messages.checkpoints`.
"""

from typing import Literal

import msgspec

NAN = "NaN"


class Snake(msgspec.Struct, frozen=True, kw_only=True):
    """Sends every field always."""


class Stats(Snake, frozen=True, kw_only=True):
    min: int
    max: int
    avg: int
    p50: float | str
    p90: float | str
    p95: float | str
    p99: float | str
    p999: float | str


class TaskCheckpoint(Snake, frozen=True, kw_only=True):
    id: int
    status: str
    latest_ack_timestamp: int
    checkpointed_size: int
    state_size: int
    end_to_end_duration: int
    alignment_buffered: int
    processed_data: int
    persisted_data: int
    num_subtasks: int
    num_acknowledged_subtasks: int


class Checkpoint(Snake, frozen=True, kw_only=True):
    """The fields that all three kinds share."""

    id: int
    status: str
    is_savepoint: bool
    savepoint_format: str | None = msgspec.field(name="savepointFormat")
    trigger_timestamp: int
    latest_ack_timestamp: int
    checkpointed_size: int
    state_size: int
    end_to_end_duration: int
    alignment_buffered: int
    processed_data: int
    persisted_data: int
    num_subtasks: int
    num_acknowledged_subtasks: int
    checkpoint_type: str
    tasks: dict[str, TaskCheckpoint]


class InProgress(
    Checkpoint, frozen=True, kw_only=True, tag_field="className", tag="in_progress"
): ...


class Completed(Checkpoint, frozen=True, kw_only=True, tag_field="className", tag="completed"):
    external_path: str | None
    discarded: bool


class Failed(Checkpoint, frozen=True, kw_only=True, tag_field="className", tag="failed"):
    failure_timestamp: int
    failure_message: str | None


AnyCheckpoint = InProgress | Completed | Failed


class Counts(Snake, frozen=True, kw_only=True):
    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


class Summary(Snake, frozen=True, kw_only=True):
    checkpointed_size: Stats
    state_size: Stats
    end_to_end_duration: Stats
    alignment_buffered: Stats
    processed_data: Stats
    persisted_data: Stats


class RestoredPoint(Snake, frozen=True, kw_only=True):
    id: int
    restore_timestamp: int
    is_savepoint: bool
    external_path: str | None


class Latest(Snake, frozen=True, kw_only=True):
    completed: Completed | None
    savepoint: Completed | None
    failed: Failed | None
    restored: RestoredPoint | None


class CheckpointingStatistics(Snake, frozen=True, kw_only=True):
    counts: Counts
    summary: Summary
    latest: Latest
    history: list[AnyCheckpoint]


class Externalization(Snake, frozen=True, kw_only=True):
    enabled: bool
    delete_on_cancellation: bool


class CheckpointConfig(Snake, frozen=True, kw_only=True):
    mode: str
    interval: int
    timeout: int
    min_pause: int
    max_concurrent: int
    externalization: Externalization
    state_backend: str
    checkpoint_storage: str
    unaligned_checkpoints: bool
    tolerable_failed_checkpoints: int
    aligned_checkpoint_timeout: int
    checkpoints_after_tasks_finish: bool
    state_changelog_enabled: bool
    changelog_periodic_materialization_interval: int
    changelog_storage: str


class Durations(Snake, frozen=True, kw_only=True):
    sync: int
    async_: int = msgspec.field(name="async")


class Alignment(Snake, frozen=True, kw_only=True):
    buffered: int
    processed: int
    persisted: int
    duration: int


class CompletedSubtask(Snake, frozen=True, kw_only=True, tag_field="className", tag="completed"):
    index: int
    ack_timestamp: int
    end_to_end_duration: int
    checkpointed_size: int
    state_size: int
    checkpoint: Durations
    alignment: Alignment
    start_delay: int
    unaligned_checkpoint: bool
    aborted: bool
    status: Literal["completed"] = "completed"


class PendingSubtask(Snake, frozen=True, kw_only=True, tag_field="className", tag="pending"):
    index: int
    status: Literal["pending_or_failed"] = "pending_or_failed"


class DurationStats(Snake, frozen=True, kw_only=True):
    sync: Stats
    async_: Stats = msgspec.field(name="async")


class AlignmentStats(Snake, frozen=True, kw_only=True):
    buffered: Stats
    processed: Stats
    persisted: Stats
    duration: Stats


class SubtaskSummary(Snake, frozen=True, kw_only=True):
    checkpointed_size: Stats
    state_size: Stats
    end_to_end_duration: Stats
    checkpoint_duration: DurationStats
    alignment: AlignmentStats
    start_delay: Stats


class TaskCheckpointWithSubtasks(TaskCheckpoint, frozen=True, kw_only=True):
    summary: SubtaskSummary
    subtasks: list[CompletedSubtask | PendingSubtask]
