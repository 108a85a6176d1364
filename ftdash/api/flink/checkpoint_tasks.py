"""Makes Flink's bodies about the vertices' and subtasks' parts in one checkpoint."""

from collections.abc import Iterable

from msgspec.structs import asdict

from ftdash.api.flink import shapes_checkpoints as shapes
from ftdash.api.flink.checkpoint_stats import stats_of, stats_unmeasured
from ftdash.api.flink.checkpoints import Tasks, status_of
from ftdash.api.flink.names import epoch_ms, vertex_id
from ftdash.checkpoints.answers import SubtaskTimeline
from ftdash.checkpoints.distribution import distribution
from ftdash.checkpoints.models import CheckpointStatus
from ftdash.checkpoints.statistics import MeasuredCheckpoint
from ftdash.jobs.answers import VertexView
from ftdash.jobs.run_queries import RunFacts


def tasks(run: RunFacts, found: MeasuredCheckpoint, subtasks: list[SubtaskTimeline]) -> Tasks:
    """One entry for every vertex: Flink's page breaks when one is missing."""
    return {
        vertex_id(vertex): _task(run, found, parts_of(vertex, subtasks)) for vertex in run.vertices
    }


def parts_of(vertex: VertexView, subtasks: list[SubtaskTimeline]) -> list[SubtaskTimeline]:
    return [part for part in subtasks if part.vertex == vertex.uid]


def _task(
    run: RunFacts, found: MeasuredCheckpoint, parts: list[SubtaskTimeline]
) -> shapes.TaskCheckpoint:
    row = found.row
    last_ms = max((part.acknowledged_ms for part in parts), default=None)
    trigger_ms = epoch_ms(row.trigger_at)
    count = _subtask_count(run, found)
    status = status_of(found)
    if row.status is CheckpointStatus.IN_PROGRESS and len(parts) == count:
        status = CheckpointStatus.COMPLETED.value
    return shapes.TaskCheckpoint(
        id=row.checkpoint_id or 0,
        status=status,
        latest_ack_timestamp=-1 if last_ms is None else trigger_ms + round(last_ms),
        checkpointed_size=sum(part.uploaded_bytes for part in parts),
        state_size=sum(part.state_bytes for part in parts),
        end_to_end_duration=-1 if last_ms is None else round(last_ms),
        alignment_buffered=sum(_buffered(part) for part in parts),
        processed_data=0,
        persisted_data=sum(part.persisted_bytes for part in parts),
        num_subtasks=count,
        num_acknowledged_subtasks=len(parts),
    )


def _subtask_count(run: RunFacts, found: MeasuredCheckpoint) -> int:
    """Of one vertex, when the checkpoint was taken: a run may be rescaled afterwards."""
    return found.row.subtask_count // max(1, len(run.vertices)) or run.parallelism


def _buffered(part: SubtaskTimeline) -> int:
    return sum(channel.buffered_bytes for channel in part.channels)


def with_subtasks(
    run: RunFacts, found: MeasuredCheckpoint, parts: list[SubtaskTimeline]
) -> shapes.TaskCheckpointWithSubtasks:
    by_index = {part.subtask: part for part in parts}
    trigger_ms = epoch_ms(found.row.trigger_at)
    return shapes.TaskCheckpointWithSubtasks(
        **asdict(_task(run, found, parts)),
        summary=_subtask_summary(parts),
        subtasks=[
            _subtask(by_index[index], trigger_ms)
            if index in by_index
            else shapes.PendingSubtask(index=index)
            for index in range(_subtask_count(run, found))
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
            buffered=_buffered(part),
            processed=0,
            persisted=part.persisted_bytes,
            duration=round(part.alignment_ms),
        ),
        start_delay=round(part.start_delay_ms),
        unaligned_checkpoint=part.is_unaligned,
        aborted=False,
    )


def _subtask_summary(parts: list[SubtaskTimeline]) -> shapes.SubtaskSummary:
    def over(values: Iterable[float]) -> shapes.Stats:
        return stats_of(distribution(values))

    return shapes.SubtaskSummary(
        checkpointed_size=over(part.uploaded_bytes for part in parts),
        state_size=over(part.state_bytes for part in parts),
        end_to_end_duration=over(part.acknowledged_ms for part in parts),
        checkpoint_duration=shapes.DurationStats(
            sync=over(part.sync_ms for part in parts), async_=over(part.async_ms for part in parts)
        ),
        alignment=shapes.AlignmentStats(
            buffered=over(_buffered(part) for part in parts),
            processed=stats_unmeasured(distribution(part.state_bytes for part in parts)),
            persisted=over(part.persisted_bytes for part in parts),
            duration=over(part.alignment_ms for part in parts),
        ),
        start_delay=over(part.start_delay_ms for part in parts),
    )
