"""All checkpoints of a run that there are: chosen by a filter, a part at a time.

A part is found by its neighbour and not by its number, so the last one is as cheap as the first,
and new checkpoints do not shift it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from django.db import models
from django.db.models import QuerySet

from ftdash.checkpoints.answers import CheckpointRow
from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from ftdash.checkpoints.queries.checkpoints import row_of
from ftdash.checkpoints.queries.statistics import MeasuredCheckpoint, measurements_of
from ftdash.jobs.models import Run
from pipelines.domain.status import CheckpointKind

CHUNK = 500
"""How many rows are read at once when all are wanted."""


class StatusChoice(models.TextChoices):
    IN_PROGRESS = "IN_PROGRESS", "in progress"
    COMPLETED = "COMPLETED", "completed"
    KEPT = "KEPT", "completed and kept"
    FAILED = "FAILED", "failed"


_STATUSES = {
    StatusChoice.IN_PROGRESS: (CheckpointStatus.IN_PROGRESS,),
    StatusChoice.COMPLETED: COMPLETE,
    StatusChoice.KEPT: (CheckpointStatus.COMPLETED,),
    StatusChoice.FAILED: (CheckpointStatus.FAILED,),
}


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """None and empty match everything."""

    status: StatusChoice | None = None
    kind: CheckpointKind | None = None
    reason_name: str = ""  # Flink's, for failed ones
    from_id: int | None = None
    to_id: int | None = None


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """Newest first. `newer` and `older` are the places of the neighbours; None: there are none."""

    rows: list[MeasuredCheckpoint]
    match_count: int
    newer: int | None
    older: int | None


EVERYTHING = HistoryFilter()


def history(
    run_id: str,
    chosen: HistoryFilter = EVERYTHING,
    *,
    after: int | None = None,
    before: int | None = None,
    limit: int = 25,
) -> HistoryPart | None:
    """The newest part, or the part next to a place that another part gave. None: no such run.

    If nothing is next to the place, returns the newest part.
    """
    run = Run.objects.filter(run_id=run_id).first()
    if run is None:
        return None
    matching = _matching(run, chosen)
    found = _next_to(matching, after, before, limit) or list(_newest_first(matching)[:limit])
    known = measurements_of(found)
    has_newer = bool(found) and matching.filter(sequence__gt=found[0].sequence).exists()
    has_older = bool(found) and matching.filter(sequence__lt=found[-1].sequence).exists()
    return HistoryPart(
        rows=[known[row.pk] for row in found],
        match_count=matching.count(),
        newer=found[0].sequence if has_newer else None,
        older=found[-1].sequence if has_older else None,
    )


def whole_history(run_id: str, chosen: HistoryFilter) -> Iterator[list[CheckpointRow]]:
    """All matches, newest first, in lists that are read one by one."""
    matching = _newest_first(Checkpoint.objects.filter(run__run_id=run_id).filter(_rule(chosen)))
    found = list(matching[:CHUNK])
    while found:
        yield [row_of(row) for row in found]
        found = list(matching.filter(sequence__lt=found[-1].sequence)[:CHUNK])


def _matching(run: Run, chosen: HistoryFilter) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.filter(run=run).filter(_rule(chosen)).order_by()


def _rule(chosen: HistoryFilter) -> models.Q:
    rule = models.Q()
    if chosen.status is not None:
        rule &= models.Q(status__in=_STATUSES[chosen.status])
    if chosen.kind is not None:
        rule &= models.Q(kind=chosen.kind.value)
    if chosen.reason_name:
        rule &= models.Q(reason_name=chosen.reason_name)
    if chosen.from_id is not None:
        rule &= models.Q(checkpoint_id__gte=chosen.from_id)
    if chosen.to_id is not None:
        rule &= models.Q(checkpoint_id__lte=chosen.to_id)
    return rule


def _newest_first(rows: QuerySet[Checkpoint]) -> QuerySet[Checkpoint]:
    return rows.select_related("run").order_by("-sequence")


def _next_to(
    matching: QuerySet[Checkpoint], after: int | None, before: int | None, limit: int
) -> list[Checkpoint]:
    """A full part above `after`, or the part below `before`. Empty if there is none."""
    if before is not None:
        return list(_newest_first(matching.filter(sequence__lt=before))[:limit])
    if after is None:
        return []
    above = matching.filter(sequence__gt=after).select_related("run").order_by("sequence")
    found = list(above[:limit])
    return found[::-1] if len(found) == limit else []
