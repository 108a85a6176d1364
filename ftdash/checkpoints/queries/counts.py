"""How many checkpoints of a run ended in which way: one count for pages, programs and monitors.

Includes those whose rows were deleted for their age.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max

from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from ftdash.history.models import Counted, PrunedCount
from pipelines.domain.checkpoint_failures import CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class StatusCounts:
    """Checkpoints that were refused before they had an id count as failed."""

    total: int
    in_progress: int
    completed: int  # including discarded ones
    failed: int


@dataclass(frozen=True, slots=True)
class FailureCount:
    """One reason; `newest_id` is None if none of them got an id."""

    reason_name: str  # Flink's
    reason_text: str
    count: int
    newest_id: int | None
    newest_at: datetime | None


def counts_of(run_pk: int) -> StatusCounts:
    rows = Checkpoint.objects.filter(run=run_pk).order_by()
    there = rows.values("status").annotate(count=Count("pk")).values_list("status", "count")
    gone = PrunedCount.objects.filter(run=run_pk, what__in=CheckpointStatus.values)
    found: Counter[str] = Counter()
    for status, count in there.union(gone.values_list("what", "count"), all=True):
        found[status] += count
    return StatusCounts(
        total=found.total(),
        in_progress=found[CheckpointStatus.IN_PROGRESS],
        completed=sum(found[status] for status in COMPLETE),
        failed=found[CheckpointStatus.FAILED],
    )


def failure_counts(run_pk: int) -> list[FailureCount]:
    """The most frequent reason first."""
    failed = Checkpoint.objects.filter(run=run_pk, status=CheckpointStatus.FAILED).order_by()
    there = failed.values("reason_name").annotate(
        count=Count("pk"), newest_id=Max("checkpoint_id"), newest_at=Max("failed_at")
    )
    gone = PrunedCount.objects.filter(run=run_pk, what=Counted.FAILED)
    found: dict[str, FailureCount] = {}
    for row in there.values_list(*_OF_REASON).union(gone.values_list(*_OF_REASON), all=True):
        more = FailureCount(row[0], CheckpointFailureReason[row[0]].value, *row[1:])
        known = found.get(more.reason_name)
        found[more.reason_name] = _together(known, more) if known else more
    return sorted(found.values(), key=lambda each: (-each.count, each.reason_name))


def _together(one: FailureCount, other: FailureCount) -> FailureCount:
    return FailureCount(
        one.reason_name,
        one.reason_text,
        one.count + other.count,
        max(filter(None, (one.newest_id, other.newest_id)), default=None),
        max(filter(None, (one.newest_at, other.newest_at)), default=None),
    )


_OF_REASON = ("reason_name", "count", "newest_id", "newest_at")
