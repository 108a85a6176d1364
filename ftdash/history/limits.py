"""How long each kind of history is kept, and how many rows a run had, including deleted ones.

The limit is the default, or an admin's choice. Programs and monitors get the counts; a monitor
takes a counter that goes down for one that restarted. So code that deletes rows adds them here in
the same transaction. Code that counts reads both in one statement, so that nothing moves in
between.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.db import transaction
from django.db.models import Count, QuerySet

from ftdash.accounts import services
from ftdash.formats import period
from ftdash.history.models import Counted, Kind, Limit, PrunedCount
from ftdash.jobs.models import Run
from ftdash.jobs.validation import check_reason
from pipelines.domain.errors import Rejected

_HOURS = tuple(timedelta(hours=hours) for hours in (1, 3, 6, 12, 24))
_DAYS = tuple(timedelta(days=days) for days in (1, 7, 30, 90, 365, 1_095))
_FOR_GOOD = timedelta(days=36_500)
"""The default for watched queries, whose own checkpoints keep a hundred batches."""


def choices(kind: Kind) -> tuple[timedelta, ...]:
    """The choices, shortest first. Metrics come once a second, and are kept for hours."""
    offered = _HOURS if kind is Kind.METRICS else _DAYS
    return tuple(sorted({*offered, default(kind)}))


def default(kind: Kind) -> timedelta:
    if kind is Kind.METRICS:
        return timedelta(seconds=settings.SAMPLE_RETENTION_S)
    if kind is Kind.QUERIES:
        return _FOR_GOOD
    return timedelta(days=settings.HISTORY_RETENTION_DAYS)


def kept_for(kind: Kind) -> timedelta:
    chosen = Limit.objects.filter(kind=kind).values_list("keep_s", flat=True).first()
    return default(kind) if chosen is None else timedelta(seconds=chosen)


def change(*, kind: Kind, keep: timedelta, requester: str, reason: str) -> None:
    """Changes the limit. Older rows are gone within minutes, permanently."""
    reason = check_reason(reason)
    if keep not in choices(kind):
        raise Rejected(f"History of {kind.label} cannot be kept for {period(keep)}.")
    with transaction.atomic():
        keep_s = int(keep.total_seconds())
        Limit.objects.update_or_create(kind=kind, defaults={"keep_s": keep_s})
        services.record(
            who=requester,
            what="changed",
            subject=f"history of {kind.label}",
            reason=reason,
            detail=f"kept for {period(keep)}",
        )


class Counter(NamedTuple):
    """The key of one count."""

    run_pk: int
    what: Counted
    reason_name: str = ""


@dataclass(slots=True)
class Tally:
    """The rows of one counter; `newest_id` and `newest_at` are for checkpoints."""

    count: int = 0
    newest_id: int | None = None
    newest_at: datetime | None = None

    def add(self, count: int, newest_id: int | None, newest_at: datetime | None) -> None:
        self.count += count
        self.newest_id = max(filter(None, (self.newest_id, newest_id)), default=None)
        self.newest_at = max(filter(None, (self.newest_at, newest_at)), default=None)


def add(tallies: Mapping[Counter, Tally]) -> None:
    """Adds rows that are about to be deleted, with locks, in the transaction that deletes them."""
    rows = PrunedCount.objects.select_for_update()
    for (run_pk, what, reason_name), tally in tallies.items():
        row, _ = rows.get_or_create(run_id=run_pk, what=what, reason_name=reason_name)
        tally.add(row.count, row.newest_id, row.newest_at)
        row.count, row.newest_id, row.newest_at = tally.count, tally.newest_id, tally.newest_at
        row.save()


def ever(rows: QuerySet[Any], what: Counted, runs: Collection[int]) -> dict[int, int]:
    """Returns, by primary key of the run, how many of its `rows` exist or were deleted."""
    there = rows.filter(run__in=runs).order_by().values("run").annotate(count=Count("pk"))
    gone = PrunedCount.objects.filter(run__in=runs, what=what).order_by()
    both = there.values_list("run", "count").union(gone.values_list("run", "count"), all=True)
    found = dict.fromkeys(runs, 0)
    for run, count in both:
        found[run] += count
    return found


def forget(run: Run) -> None:
    """Deletes the counts: the run's rows are made again, even deleted ones, and pruned again."""
    PrunedCount.objects.filter(run=run).delete()
