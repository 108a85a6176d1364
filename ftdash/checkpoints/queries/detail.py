"""One checkpoint with the part of each vertex and subtask in it, alone or beside another one.

Between two, it names the stretch of the subtask that made one take longer.
"""

from dataclasses import dataclass

from ftdash.checkpoints.alignment import stretches_of, stretches_to_last
from ftdash.checkpoints.answers import AlignmentTimeline, SubtaskTimeline
from ftdash.checkpoints.models import Checkpoint
from ftdash.checkpoints.parts import VertexPart, vertex_parts
from ftdash.checkpoints.queries.checkpoints import timeline_of
from ftdash.checkpoints.queries.statistics import MeasuredCheckpoint, measured
from ftdash.jobs.answers import VertexView

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


def checkpoint_detail(run_id: str, checkpoint_id: int) -> CheckpointDetail | None:
    """None if the run has no checkpoint with that id."""
    of_run = Checkpoint.objects.filter(run__run_id=run_id).select_related("run")
    row = of_run.filter(checkpoint_id=checkpoint_id).first()
    if row is None:
        return None
    ids = of_run.order_by().values_list("checkpoint_id", flat=True)
    found, timeline = measured([row])[row.pk], timeline_of(row)
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
    """`growth`: why the slower one took longer; None: for no reason, or it is not known."""

    shown: CheckpointDetail
    other: CheckpointDetail
    growth: Growth | None


def compared(run_id: str, checkpoint_id: int, other_id: int) -> ComparedCheckpoints | None:
    """None if the run lacks one of them."""
    shown, other = checkpoint_detail(run_id, checkpoint_id), checkpoint_detail(run_id, other_id)
    if shown is None or other is None:
        return None
    quick, slow = sorted((shown, other), key=lambda each: each.found.took_ms or 0.0)
    return ComparedCheckpoints(
        shown, other, longest_growth(slow.timeline.subtasks, quick.timeline.subtasks)
    )


def longest_growth(slow: list[SubtaskTimeline], quick: list[SubtaskTimeline]) -> Growth | None:
    """The stretch before the slower one's last acknowledgement that grew most.

    None: none grew, or a side's subtasks are not known.
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
