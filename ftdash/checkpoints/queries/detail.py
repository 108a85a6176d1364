"""One checkpoint, its neighbours, and the part of each vertex and subtask in it."""

from dataclasses import dataclass

from ftdash.checkpoints.answers import AlignmentTimeline
from ftdash.checkpoints.models import Checkpoint
from ftdash.checkpoints.parts import VertexPart, vertex_parts
from ftdash.checkpoints.queries.checkpoints import timeline_of
from ftdash.checkpoints.queries.measured import MeasuredCheckpoint, measured
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
