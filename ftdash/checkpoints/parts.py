"""The part of each vertex and subtask in one checkpoint, as Flink's pages show it.

Source: Flink, `TaskStateStats` and `TaskStateStatsSummary`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ftdash.checkpoints.answers import Distribution, SubtaskTimeline, distribution
from ftdash.checkpoints.queries.statistics import MeasuredCheckpoint
from ftdash.jobs.answers import VertexView


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskSpread:
    """Each figure over the subtasks that have acknowledged."""

    acknowledged_ms: Distribution
    uploaded_bytes: Distribution
    state_bytes: Distribution
    sync_ms: Distribution
    async_ms: Distribution
    buffered_bytes: Distribution
    persisted_bytes: Distribution
    alignment_ms: Distribution
    start_delay_ms: Distribution


@dataclass(frozen=True, slots=True)
class VertexPart:
    """Sums and the newest acknowledgement cover the subtasks that have acknowledged."""

    vertex: VertexView
    subtask_count: int
    subtasks: dict[int, SubtaskTimeline]  # by index, those that have acknowledged

    @property
    def acknowledged_count(self) -> int:
        return len(self.subtasks)

    @property
    def acknowledged_share(self) -> float:
        return self.acknowledged_count / self.subtask_count

    @property
    def last_acknowledged_ms(self) -> float | None:
        return max((each.acknowledged_ms for each in self.subtasks.values()), default=None)

    @property
    def state_bytes(self) -> int:
        return sum(each.state_bytes for each in self.subtasks.values())

    @property
    def uploaded_bytes(self) -> int:
        return sum(each.uploaded_bytes for each in self.subtasks.values())

    @property
    def buffered_bytes(self) -> int:
        return sum(each.buffered_bytes for each in self.subtasks.values())

    @property
    def persisted_bytes(self) -> int:
        return sum(each.persisted_bytes for each in self.subtasks.values())

    @property
    def spread(self) -> SubtaskSpread:
        def over(figure: Callable[[SubtaskTimeline], float]) -> Distribution:
            return distribution(figure(each) for each in self.subtasks.values())

        return SubtaskSpread(
            acknowledged_ms=over(lambda each: each.acknowledged_ms),
            uploaded_bytes=over(lambda each: each.uploaded_bytes),
            state_bytes=over(lambda each: each.state_bytes),
            sync_ms=over(lambda each: each.sync_ms),
            async_ms=over(lambda each: each.async_ms),
            buffered_bytes=over(lambda each: each.buffered_bytes),
            persisted_bytes=over(lambda each: each.persisted_bytes),
            alignment_ms=over(lambda each: each.alignment_ms),
            start_delay_ms=over(lambda each: each.start_delay_ms),
        )


def vertex_parts(
    vertices: list[VertexView],
    parallelism: int,
    found: MeasuredCheckpoint,
    subtasks: list[SubtaskTimeline],
) -> list[VertexPart]:
    """One for every vertex of the run, even if no subtask of it has acknowledged."""
    # Per vertex at the time of the checkpoint: a run may be rescaled afterwards.
    count = found.row.subtask_count // max(1, len(vertices)) or parallelism
    return [
        VertexPart(
            vertex, count, {each.subtask: each for each in subtasks if each.vertex == vertex.uid}
        )
        for vertex in vertices
    ]
