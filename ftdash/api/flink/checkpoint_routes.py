"""Addresses that read the checkpoints of a job.

Makes Flink's bodies about the vertices' and subtasks' parts in one checkpoint.
"""

from msgspec.structs import asdict

from ftdash.api.flink import checkpoints
from ftdash.api.flink import shapes_checkpoints as shapes
from ftdash.api.flink.checkpoints import Tasks, stats_of, stats_unmeasured, status_of
from ftdash.api.flink.http import Asked, Problem, check_id, job_of
from ftdash.api.flink.names import epoch_ms, vertex_id
from ftdash.checkpoints.answers import SubtaskTimeline
from ftdash.checkpoints.models import CheckpointStatus
from ftdash.checkpoints.parts import VertexPart
from ftdash.checkpoints.queries.detail import (
    CHECKPOINT_ID_MAX,
    CheckpointDetail,
    checkpoint_detail,
)
from ftdash.checkpoints.queries.measured import MeasuredCheckpoint
from ftdash.checkpoints.queries.statistics import statistics_of


def tasks(found: MeasuredCheckpoint, parts: list[VertexPart]) -> Tasks:
    """One entry for every vertex: Flink's page fails if one is missing."""
    return {vertex_id(part.vertex): _task(found, part) for part in parts}


def _task(found: MeasuredCheckpoint, part: VertexPart) -> shapes.TaskCheckpoint:
    row, last_ms = found.row, part.last_acknowledged_ms
    status = status_of(found)
    is_whole = part.acknowledged_count == part.subtask_count
    if row.status is CheckpointStatus.IN_PROGRESS and is_whole:
        status = CheckpointStatus.COMPLETED.value
    return shapes.TaskCheckpoint(
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


def with_subtasks(found: MeasuredCheckpoint, part: VertexPart) -> shapes.TaskCheckpointWithSubtasks:
    trigger_ms = epoch_ms(found.row.trigger_at)
    return shapes.TaskCheckpointWithSubtasks(
        **asdict(_task(found, part)),
        summary=_subtask_summary(part),
        subtasks=[
            _subtask(part.subtasks[index], trigger_ms)
            if index in part.subtasks
            else shapes.PendingSubtask(index=index)
            for index in range(part.subtask_count)
        ],
    )


def _subtask(part: SubtaskTimeline, trigger_ms: int) -> shapes.CompletedSubtask:
    return shapes.CompletedSubtask(
        index=part.subtask,
        ack_timestamp=trigger_ms + round(part.acknowledged_ms),
        end_to_end_duration=round(part.acknowledged_ms),
        checkpointed_size=part.uploaded_bytes,
        state_size=part.state_bytes,
        checkpoint=shapes.Durations(sync=round(part.sync_ms), async_=round(part.async_ms)),
        alignment=shapes.Alignment(
            buffered=part.buffered_bytes,
            processed=0,
            persisted=part.persisted_bytes,
            duration=round(part.alignment_ms),
        ),
        start_delay=round(part.start_delay_ms),
        unaligned_checkpoint=part.is_unaligned,
        aborted=False,
    )


def _subtask_summary(part: VertexPart) -> shapes.SubtaskSummary:
    spread = part.spread
    return shapes.SubtaskSummary(
        checkpointed_size=stats_of(spread.uploaded_bytes),
        state_size=stats_of(spread.state_bytes),
        end_to_end_duration=stats_of(spread.acknowledged_ms),
        checkpoint_duration=shapes.DurationStats(
            sync=stats_of(spread.sync_ms), async_=stats_of(spread.async_ms)
        ),
        alignment=shapes.AlignmentStats(
            buffered=stats_of(spread.buffered_bytes),
            processed=stats_unmeasured(spread.state_bytes),
            persisted=stats_of(spread.persisted_bytes),
            duration=stats_of(spread.alignment_ms),
        ),
        start_delay=stats_of(spread.start_delay_ms),
    )


def statistics(asked: Asked, job: str) -> object:
    found = statistics_of(job_of(job).run_id)
    if found is None:
        raise Problem(404, f"Job {job} not found")
    return checkpoints.statistics(found)


def config(asked: Asked, job: str) -> object:
    return checkpoints.config(job_of(job))


def details(asked: Asked, job: str, checkpoint: str) -> object:
    detail = _checkpoint(job, checkpoint)
    return checkpoints.checkpoint(detail.found, tasks(detail.found, detail.parts))


def subtasks(asked: Asked, job: str, checkpoint: str, vertex: str) -> object:
    check_id("vertexid", vertex)
    detail = _checkpoint(job, checkpoint)
    named = next((part for part in detail.parts if vertex_id(part.vertex) == vertex), None)
    if named is None:
        raise Problem(404, f"There is no vertex {vertex} in job {job}.")
    return with_subtasks(detail.found, named)


def _checkpoint(job: str, text: str) -> CheckpointDetail:
    """Raises Problem if there is none with that id, or if its subtasks' part is no longer kept."""
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
