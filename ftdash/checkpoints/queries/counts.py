"""How many checkpoints of a run ended in which way: one count for pages, programs and monitors.

Includes those whose rows were deleted for their age.

Up to which checkpoint runs have committed output, and since when the next one waits.

Reads rows only, of any number of runs at once.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, OuterRef, Subquery
from django.db.models.functions import Coalesce, Greatest

from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from ftdash.history.models import Counted, PrunedCount
from ftdash.jobs.models import Recovery, Run
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


_committed = Checkpoint.objects.filter(run=OuterRef("pk"), committed_at__isnull=False)
_recovered = Recovery.objects.filter(
    run=OuterRef("pk"), running_at__isnull=False, restored_checkpoint_id__isnull=False
)
COMMITTED_ID = Greatest(
    Coalesce(Subquery(_committed.order_by("-checkpoint_id").values("checkpoint_id")[:1]), 0),
    Coalesce(
        Subquery(
            _recovered.order_by("-restored_checkpoint_id").values("restored_checkpoint_id")[:1]
        ),
        0,
    ),
)
"""For a row of `Run`. The point to which a recovery goes back is committed before it runs."""


def waiting_since(runs: Collection[int]) -> dict[int, datetime]:
    """For runs with a completed, uncommitted checkpoint: when the oldest such one was triggered.

    Its sinks opened their prepared transactions before that, and the targets have held them since.
    """
    waiting = (
        Checkpoint.objects.filter(run=OuterRef("pk"), status__in=COMPLETE)
        .filter(checkpoint_id__gt=OuterRef("committed_id"))
        .order_by("checkpoint_id")
    )
    rows = (
        Run.objects.filter(pk__in=runs)
        .annotate(committed_id=COMMITTED_ID)
        .annotate(waits_since=Subquery(waiting.values("trigger_at")[:1]))
        .exclude(waits_since=None)
    )
    return dict(rows.values_list("pk", "waits_since"))
