"""One checkpoint with the part of each vertex and subtask in it, alone or next to another one.

Parts are summed up as on Flink's pages. For two checkpoints, the module names the stretch of a
subtask that made one take longer.

Source: Flink, `TaskStateStats` and `TaskStateStatsSummary`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ftdash.checkpoints.answers import (
    AlignmentTimeline,
    Distribution,
    SubtaskTimeline,
    distribution,
    stretches_of,
    stretches_to_last,
)
from ftdash.checkpoints.models import Checkpoint
from ftdash.checkpoints.queries.checkpoints import timeline_of
from ftdash.checkpoints.queries.statistics import MeasuredCheckpoint, measurements_of
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
    """Returns one part for every vertex of the run, even if no subtask of it has acknowledged."""
    # The parallelism at the time of the checkpoint: a run may be rescaled afterwards.
    own = [vertex.parallelism for vertex in vertices if vertex.parallelism is not None]
    others = found.row.subtask_count - sum(own)
    count = others // max(1, len(vertices) - len(own)) or parallelism
    return [
        VertexPart(
            vertex,
            vertex.subtask_count(count),
            {each.subtask: each for each in subtasks if each.vertex == vertex.uid},
        )
        for vertex in vertices
    ]


CHECKPOINT_ID_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class CheckpointDetail:
    """`earlier_id` and `later_id` are its neighbours in the run; None: there is none."""

    found: MeasuredCheckpoint
    timeline: AlignmentTimeline
    parts: list[VertexPart]
    earlier_id: int | None
    later_id: int | None

    @property
    def is_forgotten(self) -> bool:
        """True if subtasks acknowledged it, but their parts are no longer kept."""
        return self.found.row.acknowledged_count > 0 and not self.timeline.subtasks


def checkpoint_detail(
    run_id: str, checkpoint_id: int, *, is_whole: bool = False
) -> CheckpointDetail | None:
    """Returns None if the run has no checkpoint with that id. `is_whole` decodes all channels."""
    of_run = Checkpoint.objects.filter(run__run_id=run_id).select_related("run")
    row = of_run.filter(checkpoint_id=checkpoint_id).first()
    if row is None:
        return None
    ids = of_run.order_by().values_list("checkpoint_id", flat=True)
    found, timeline = measurements_of([row])[row.pk], timeline_of(row, is_whole=is_whole)
    vertices = [VertexView(**vertex) for vertex in row.run.vertices]
    return CheckpointDetail(
        found=found,
        timeline=timeline,
        parts=vertex_parts(vertices, row.run.parallelism, found, timeline.subtasks),
        earlier_id=ids.filter(checkpoint_id__lt=checkpoint_id).order_by("-checkpoint_id").first(),
        later_id=ids.filter(checkpoint_id__gt=checkpoint_id).order_by("checkpoint_id").first(),
    )


@dataclass(frozen=True, slots=True)
class Growth:
    """`phase` as in `Slowest`, with its time in the quicker and in the slower checkpoint."""

    vertex: str
    subtask: int
    phase: str
    quick_ms: float
    slow_ms: float

    @property
    def more_ms(self) -> float:
        return self.slow_ms - self.quick_ms


@dataclass(frozen=True, slots=True)
class ComparedCheckpoints:
    """`growth` is why the slower one took longer. None means that no reason is known."""

    shown: CheckpointDetail
    other: CheckpointDetail
    growth: Growth | None


def compared(run_id: str, checkpoint_id: int, other_id: int) -> ComparedCheckpoints | None:
    """Returns None if the run has no checkpoint with one of these ids."""
    shown = checkpoint_detail(run_id, checkpoint_id, is_whole=True)
    other = checkpoint_detail(run_id, other_id, is_whole=True)
    if shown is None or other is None:
        return None
    quick, slow = sorted((shown, other), key=lambda each: each.found.took_ms or 0.0)
    return ComparedCheckpoints(
        shown, other, longest_growth(slow.timeline.subtasks, quick.timeline.subtasks)
    )


def longest_growth(slow: list[SubtaskTimeline], quick: list[SubtaskTimeline]) -> Growth | None:
    """Returns the stretch before the slower one's last acknowledgement that grew most.

    None means that no stretch grew, or that the subtasks of one side are not known.
    """
    by_name = {(each.vertex, each.subtask): each for each in quick}
    grown = []
    for stretch in stretches_to_last(slow):
        same = by_name.get((stretch.subtask.vertex, stretch.subtask.subtask))
        if same is not None:
            before_ms = stretches_of(same, quick).get(stretch.phase, 0.0)
            subtask = stretch.subtask
            grown.append(
                Growth(subtask.vertex, subtask.subtask, stretch.phase, before_ms, stretch.ms)
            )
    most = max(grown, key=lambda growth: growth.more_ms, default=None)
    return most if most is not None and most.more_ms > 0 else None
