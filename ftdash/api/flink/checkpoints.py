"""Flink's addresses that read the checkpoints of a job, with their bodies as Flink 2.3 sends them.

`processed_data`, the bytes that passed while a subtask aligned, is always 0: we do not measure it.
`alignment_buffered`, which has been 0 in Flink for years, is the bytes that the alignment held
back. A distribution has whole numbers, and quantiles that may be "NaN".

Source: Flink, `org.apache.flink.runtime.rest.messages.checkpoints`.
"""

from typing import Literal

import msgspec
from msgspec.structs import asdict

from ftdash.api.flink.http import FlinkCall, Problem, check_id, job_of
from ftdash.api.flink.names import epoch_ms, vertex_id
from ftdash.checkpoints.answers import Distribution, SubtaskTimeline, distribution
from ftdash.checkpoints.models import CheckpointStatus
from ftdash.checkpoints.queries.detail import (
    CHECKPOINT_ID_MAX,
    CheckpointDetail,
    VertexPart,
    checkpoint_detail,
)
from ftdash.checkpoints.queries.statistics import (
    MeasuredCheckpoint,
    Restored,
    RunStatistics,
    statistics_of,
)
from ftdash.runs.queries.runs import RunFacts
from pipelines.domain.settings import (
    CheckpointingMode,
    CheckpointStorage,
    ExternalizedRetention,
    StateBackendType,
)
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import CheckpointKind

NAN = "NaN"


class Snake(msgspec.Struct, frozen=True, kw_only=True):
    """Always sends every field."""


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


def stats_of(found: Distribution) -> Stats:
    quantiles: list[float | str] = [float(each) for each in found.quantiles] or [NAN] * 5
    return Stats(
        min=round(found.minimum),
        max=round(found.maximum),
        avg=int(found.average),
        p50=quantiles[0],
        p90=quantiles[1],
        p95=quantiles[2],
        p99=quantiles[3],
        p999=quantiles[4],
    )


def stats_unmeasured(like: Distribution) -> Stats:
    """Returns zeros; the quantiles are "NaN" if those of `like` are."""
    return stats_of(distribution([0.0] if like.quantiles else []))


Tasks = dict[str, TaskCheckpoint]


def statistics_body(found: RunStatistics) -> CheckpointingStatistics:
    counts, summary = found.counts, found.summary
    return CheckpointingStatistics(
        counts=msgspec.convert(counts, Counts, from_attributes=True),
        summary=Summary(
            checkpointed_size=stats_of(summary.uploaded_bytes),
            state_size=stats_of(summary.state_bytes),
            end_to_end_duration=stats_of(summary.end_to_end_ms),
            alignment_buffered=stats_of(summary.buffered_bytes),
            processed_data=stats_unmeasured(summary.state_bytes),
            persisted_data=stats_of(summary.persisted_bytes),
        ),
        latest=_latest(found),
        history=[checkpoint_body(each, {}) for each in found.history],
    )


def _latest(found: RunStatistics) -> Latest:
    completed, savepoint, failed = found.completed, found.savepoint, found.failed
    return Latest(
        completed=_completed(completed, {}) if completed else None,
        savepoint=_completed(savepoint, {}) if savepoint else None,
        failed=_failed(failed, {}) if failed else None,
        restored=_restored(found.restored) if found.restored else None,
    )


def _restored(point: Restored) -> RestoredPoint:
    return RestoredPoint(
        id=point.checkpoint_id,
        restore_timestamp=epoch_ms(point.at),
        is_savepoint=point.is_savepoint,
        external_path=point.path,
    )


def checkpoint_body(found: MeasuredCheckpoint, tasks: Tasks) -> AnyCheckpoint:
    match found.row.status:
        case CheckpointStatus.IN_PROGRESS:
            return _common(found, tasks)
        case CheckpointStatus.FAILED:
            return _failed(found, tasks)
        case _:
            return _completed(found, tasks)


def _completed(found: MeasuredCheckpoint, tasks: Tasks) -> Completed:
    row = found.row
    is_discarded = row.status is CheckpointStatus.DISCARDED
    return Completed(
        **asdict(_common(found, tasks)), external_path=row.path, discarded=is_discarded
    )


def _failed(found: MeasuredCheckpoint, tasks: Tasks) -> Failed:
    row = found.row
    return Failed(
        **asdict(_common(found, tasks)),
        failure_timestamp=epoch_ms(row.failed_at),
        failure_message=f"{row.reason_text} {row.message}".strip() or None,
    )


def _common(found: MeasuredCheckpoint, tasks: Tasks) -> InProgress:
    row, trigger_ms = found.row, epoch_ms(found.row.trigger_at)
    last_ms, took_ms = found.last_known_ms, found.took_ms
    return InProgress(
        id=row.checkpoint_id or 0,
        status=status_of(found),
        is_savepoint=row.kind == CheckpointKind.SAVEPOINT,
        savepoint_format=found.savepoint_format and found.savepoint_format.value,
        trigger_timestamp=trigger_ms,
        latest_ack_timestamp=-1 if last_ms is None else trigger_ms + round(last_ms),
        checkpointed_size=found.uploaded_bytes,
        state_size=found.state_bytes,
        end_to_end_duration=-1 if took_ms is None else round(took_ms),
        alignment_buffered=row.buffered_bytes or 0,
        processed_data=0,
        persisted_data=found.persisted_bytes,
        num_subtasks=row.subtask_count,
        num_acknowledged_subtasks=row.acknowledged_count,
        checkpoint_type=_type(found),
        tasks=tasks,
    )


def status_of(found: MeasuredCheckpoint) -> str:
    is_discarded = found.row.status is CheckpointStatus.DISCARDED
    return (CheckpointStatus.COMPLETED if is_discarded else found.row.status).value


def _type(found: MeasuredCheckpoint) -> str:
    if found.row.kind == CheckpointKind.SAVEPOINT:
        return "SYNC_SAVEPOINT" if found.ends_run else "SAVEPOINT"
    return "UNALIGNED_CHECKPOINT" if found.is_unaligned else "CHECKPOINT"


NEVER = 2**63 - 1
"""Flink's interval for a job without periodic checkpoints."""

CHANGELOG_INTERVAL_MS = 600_000
_BACKENDS = {
    StateBackendType.HASHMAP: "HashMapStateBackend",
    StateBackendType.ROCKSDB: "EmbeddedRocksDBStateBackend",
}
_STORAGES = {
    CheckpointStorage.FILESYSTEM: "FileSystemCheckpointStorage",
    CheckpointStorage.JOBMANAGER: "JobManagerCheckpointStorage",
}


def config_body(run: RunFacts) -> CheckpointConfig:
    given = parse_settings(run.settings)
    checkpointing = given.checkpointing
    kept = checkpointing.retention is not ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS
    deletes = checkpointing.retention is ExternalizedRetention.DELETE_ON_CANCELLATION
    mode = given.barriers.mode
    if mode is CheckpointingMode.ACKED:
        mode = CheckpointingMode.AT_LEAST_ONCE
    return CheckpointConfig(
        mode=mode.value.lower(),  # Flink has no word for at most once
        interval=NEVER if checkpointing.interval_ms is None else checkpointing.interval_ms,
        timeout=checkpointing.timeout_ms,
        min_pause=checkpointing.min_pause_ms,
        max_concurrent=checkpointing.max_concurrent,
        externalization=Externalization(enabled=kept, delete_on_cancellation=deletes),
        state_backend=_BACKENDS[given.state.backend],
        checkpoint_storage=_STORAGES[given.storage.kind],
        unaligned_checkpoints=given.barriers.unaligned,
        tolerable_failed_checkpoints=checkpointing.tolerable_failures,
        aligned_checkpoint_timeout=given.barriers.aligned_timeout_ms,
        checkpoints_after_tasks_finish=checkpointing.allows_finished_sources,
        state_changelog_enabled=False,
        changelog_periodic_materialization_interval=CHANGELOG_INTERVAL_MS,
        changelog_storage="memory",
    )


def tasks(found: MeasuredCheckpoint, parts: list[VertexPart]) -> Tasks:
    """One entry for every vertex: Flink's page fails if one is missing."""
    return {vertex_id(part.vertex): _task(found, part) for part in parts}


def _task(found: MeasuredCheckpoint, part: VertexPart) -> TaskCheckpoint:
    row, last_ms = found.row, part.last_acknowledged_ms
    status = status_of(found)
    is_whole = part.acknowledged_count == part.subtask_count
    if row.status is CheckpointStatus.IN_PROGRESS and is_whole:
        status = CheckpointStatus.COMPLETED.value
    return TaskCheckpoint(
        id=row.checkpoint_id or 0,
        status=status,
        latest_ack_timestamp=-1 if last_ms is None else epoch_ms(row.trigger_at) + round(last_ms),
        checkpointed_size=part.uploaded_bytes,
        state_size=part.state_bytes,
        end_to_end_duration=-1 if last_ms is None else round(last_ms),
        alignment_buffered=part.buffered_bytes,
        processed_data=0,
        persisted_data=part.persisted_bytes,
        num_subtasks=part.subtask_count,
        num_acknowledged_subtasks=part.acknowledged_count,
    )


def with_subtasks(found: MeasuredCheckpoint, part: VertexPart) -> TaskCheckpointWithSubtasks:
    trigger_ms = epoch_ms(found.row.trigger_at)
    return TaskCheckpointWithSubtasks(
        **asdict(_task(found, part)),
        summary=_subtask_summary(part),
        subtasks=[
            _subtask(part.subtasks[index], trigger_ms)
            if index in part.subtasks
            else PendingSubtask(index=index)
            for index in range(part.subtask_count)
        ],
    )


def _subtask(part: SubtaskTimeline, trigger_ms: int) -> CompletedSubtask:
    return CompletedSubtask(
        index=part.subtask,
        ack_timestamp=trigger_ms + round(part.acknowledged_ms),
        end_to_end_duration=round(part.acknowledged_ms),
        checkpointed_size=part.uploaded_bytes,
        state_size=part.state_bytes,
        checkpoint=Durations(sync=round(part.sync_ms), async_=round(part.async_ms)),
        alignment=Alignment(
            buffered=part.buffered_bytes,
            processed=0,
            persisted=part.persisted_bytes,
            duration=round(part.alignment_ms),
        ),
        start_delay=round(part.start_delay_ms),
        unaligned_checkpoint=part.is_unaligned,
        aborted=False,
    )


def _subtask_summary(part: VertexPart) -> SubtaskSummary:
    spread = part.spread
    return SubtaskSummary(
        checkpointed_size=stats_of(spread.uploaded_bytes),
        state_size=stats_of(spread.state_bytes),
        end_to_end_duration=stats_of(spread.acknowledged_ms),
        checkpoint_duration=DurationStats(
            sync=stats_of(spread.sync_ms), async_=stats_of(spread.async_ms)
        ),
        alignment=AlignmentStats(
            buffered=stats_of(spread.buffered_bytes),
            processed=stats_unmeasured(spread.state_bytes),
            persisted=stats_of(spread.persisted_bytes),
            duration=stats_of(spread.alignment_ms),
        ),
        start_delay=stats_of(spread.start_delay_ms),
    )


def statistics(call: FlinkCall, job: str) -> object:
    found = statistics_of(job_of(job).run_id)
    if found is None:
        raise Problem(404, f"Job {job} not found")
    return statistics_body(found)


def config(call: FlinkCall, job: str) -> object:
    return config_body(job_of(job))


def details(call: FlinkCall, job: str, checkpoint: str) -> object:
    detail = _checkpoint(job, checkpoint)
    return checkpoint_body(detail.found, tasks(detail.found, detail.parts))


def subtasks(call: FlinkCall, job: str, checkpoint: str, vertex: str) -> object:
    check_id("vertexid", vertex)
    detail = _checkpoint(job, checkpoint)
    named = next((part for part in detail.parts if vertex_id(part.vertex) == vertex), None)
    if named is None:
        raise Problem(404, f"There is no vertex {vertex} in job {job}.")
    return with_subtasks(detail.found, named)


def _checkpoint(job: str, text: str) -> CheckpointDetail:
    """Raises Problem if no checkpoint has that id, or the details of its subtasks were deleted."""
    run = job_of(job)
    if not text.isascii() or not text.isdigit() or int(text) > CHECKPOINT_ID_MAX:
        raise Problem(
            400,
            f"Cannot resolve path parameter (checkpointid) from value {text!r}: give its number.",
        )
    number = int(text)
    found = checkpoint_detail(run.run_id, number)
    if found is None:
        raise Problem(404, f"Could not find checkpointing statistics for checkpoint {number}.")
    if found.is_forgotten:
        raise Problem(
            404,
            f"Could not find checkpointing statistics for checkpoint {number}: what its subtasks"
            " did is kept of the newest checkpoints only.",
        )
    return found
