"""How many rows a run ever had of what is counted for programs and monitors, deleted ones too.

A counter that goes down is taken for one that began anew. So whoever deletes rows adds them here in
the same transaction, and whoever counts reads both in one statement, between which nothing moves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count, QuerySet

from ftdash.history.models import Counted, PrunedCount
from ftdash.jobs.models import Run


class Counter(NamedTuple):
    """What is counted on its own."""

    run_pk: int
    what: Counted
    reason_name: str = ""


@dataclass(slots=True)
class Tally:
    """Rows of one counter; `newest_id` and `newest_at` are of checkpoints."""

    count: int = 0
    newest_id: int | None = None
    newest_at: datetime | None = None

    def add(self, count: int, newest_id: int | None, newest_at: datetime | None) -> None:
        self.count += count
        self.newest_id = max(filter(None, (self.newest_id, newest_id)), default=None)
        self.newest_at = max(filter(None, (self.newest_at, newest_at)), default=None)


def add(tallies: Mapping[Counter, Tally]) -> None:
    """Of rows that are about to be deleted, locked, in the transaction that deletes them."""
    rows = PrunedCount.objects.select_for_update()
    for (run_pk, what, reason_name), tally in tallies.items():
        row, _ = rows.get_or_create(run_id=run_pk, what=what, reason_name=reason_name)
        tally.add(row.count, row.newest_id, row.newest_at)
        row.count, row.newest_id, row.newest_at = tally.count, tally.newest_id, tally.newest_at
        row.save()


def ever(rows: QuerySet[Any], what: Counted, run_pk: int) -> int:
    """How many `rows`, all of that run, there are and were."""
    there = rows.order_by().values("run").annotate(count=Count("pk")).values_list("count")
    gone = PrunedCount.objects.filter(run=run_pk, what=what).values_list("count")
    return sum(count for (count,) in there.union(gone, all=True))


def forget(run: Run) -> None:
    """Its rows are made anew, those that were deleted, too: they will be deleted again."""
    PrunedCount.objects.filter(run=run).delete()
