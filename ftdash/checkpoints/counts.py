"""How many checkpoints of a run have ended how: one count for pages, programs and monitors."""

from dataclasses import dataclass

from django.db.models import Count, Q

from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus


@dataclass(frozen=True, slots=True)
class StatusCounts:
    """Those that were refused before they had an id are among the failed ones."""

    total: int
    in_progress: int
    completed: int  # discarded since, or not
    failed: int


def counts_of(run_pk: int) -> StatusCounts:
    counted = Checkpoint.objects.filter(run=run_pk).aggregate(
        total=Count("pk"),
        in_progress=Count("pk", filter=Q(status=CheckpointStatus.IN_PROGRESS)),
        completed=Count("pk", filter=Q(status__in=COMPLETE)),
        failed=Count("pk", filter=Q(status=CheckpointStatus.FAILED)),
    )
    return StatusCounts(**counted)
