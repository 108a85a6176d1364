"""How many checkpoints of a run have ended how: one count for pages, programs and monitors."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Q

from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from pipelines.domain.checkpoint_failures import CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class StatusCounts:
    """Those that were refused before they had an id are among the failed ones."""

    total: int
    in_progress: int
    completed: int  # discarded since, or not
    failed: int


@dataclass(frozen=True, slots=True)
class FailureCount:
    """One reason; `newest_id` is None when none of them got an id."""

    reason_name: str  # Flink's
    reason_text: str
    count: int
    newest_id: int | None
    newest_at: datetime | None


def counts_of(run_pk: int) -> StatusCounts:
    counted = Checkpoint.objects.filter(run=run_pk).aggregate(
        total=Count("pk"),
        in_progress=Count("pk", filter=Q(status=CheckpointStatus.IN_PROGRESS)),
        completed=Count("pk", filter=Q(status__in=COMPLETE)),
        failed=Count("pk", filter=Q(status=CheckpointStatus.FAILED)),
    )
    return StatusCounts(**counted)


def failure_counts(run_pk: int) -> list[FailureCount]:
    """The most frequent reason first."""
    failed = Checkpoint.objects.filter(run=run_pk, status=CheckpointStatus.FAILED).order_by()
    found = failed.values("reason_name").annotate(
        count=Count("pk"), newest_id=Max("checkpoint_id"), newest_at=Max("failed_at")
    )
    counts = [
        FailureCount(name, CheckpointFailureReason[name].value, count, newest_id, newest_at)
        for name, count, newest_id, newest_at in found.values_list(
            "reason_name", "count", "newest_id", "newest_at"
        )
    ]
    return sorted(counts, key=lambda each: (-each.count, each.reason_name))
