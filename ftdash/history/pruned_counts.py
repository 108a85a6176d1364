"""How many rows a run ever had, including deleted ones, for the counts of programs and monitors.

A monitor takes a counter that goes down for one that restarted. So code that deletes rows adds them
here in the same transaction, and code that counts reads both in one statement, between which
nothing moves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count, QuerySet

from ftdash.history.models import Counted, PrunedCount
from ftdash.jobs.models import Run


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
    """Adds rows that are about to be deleted, locked, in the transaction that deletes them."""
    rows = PrunedCount.objects.select_for_update()
    for (run_pk, what, reason_name), tally in tallies.items():
        row, _ = rows.get_or_create(run_id=run_pk, what=what, reason_name=reason_name)
        tally.add(row.count, row.newest_id, row.newest_at)
        row.count, row.newest_id, row.newest_at = tally.count, tally.newest_id, tally.newest_at
        row.save()


def ever(rows: QuerySet[Any], what: Counted, run_pk: int) -> int:
    """How many of `rows`, all of that run, exist or were deleted."""
    there = rows.order_by().values("run").annotate(count=Count("pk")).values_list("count")
    gone = PrunedCount.objects.filter(run=run_pk, what=what).values_list("count")
    return sum(count for (count,) in there.union(gone, all=True))


def forget(run: Run) -> None:
    """Its rows are made again, including deleted ones, which will be deleted again."""
    PrunedCount.objects.filter(run=run).delete()
