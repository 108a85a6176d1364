"""One checkpoint, its neighbours, and what each vertex and subtask did in it."""

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
    """`earlier_id` and `later_id`: its neighbours in the run, None where there is none."""

    found: MeasuredCheckpoint
    timeline: AlignmentTimeline
    parts: list[VertexPart]
    earlier_id: int | None
    later_id: int | None

    @property
    def is_forgotten(self) -> bool:
        """Subtasks acknowledged it, and what they did is no longer kept."""
        return self.found.row.acknowledged_count > 0 and not self.timeline.subtasks


def checkpoint_detail(run_id: str, checkpoint_id: int) -> CheckpointDetail | None:
    """None: there is none of that id in the run."""
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
