"""How many rows a run ever had of what is counted for programs and monitors, deleted ones too.

A counter that goes down is taken for one that began anew. So whoever deletes rows adds them here in
the same transaction, and whoever counts reads both in one statement, between which nothing moves.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Model, QuerySet

from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.history.models import Counted, PrunedCount
from ftdash.jobs.models import Recovery, RestoreRefusal, Run, ZombieRefusal


@dataclass(slots=True)
class _Tally:
    count: int = 0
    newest_id: int | None = None
    newest_at: datetime | None = None

    def add(self, count: int, newest_id: int | None, newest_at: datetime | None) -> None:
        self.count += count
        self.newest_id = max(filter(None, (self.newest_id, newest_id)), default=None)
        self.newest_at = max(filter(None, (self.newest_at, newest_at)), default=None)


def add(rows: Iterable[Model]) -> None:
    """What is about to be deleted, locked, in the transaction that deletes it."""
    tallies: dict[tuple[int, Counted, str], _Tally] = {}
    for row in rows:
        match row:
            case Checkpoint():
                key = row.run_id, _counted_of(row), row.reason_name
                found = row.checkpoint_id, row.failed_at
            case Recovery() if row.restored_checkpoint_id is not None:
                key, found = (row.run_id, Counted.RESTORED, ""), (None, None)
            case ZombieRefusal():
                key, found = (row.run_id, Counted.REFUSED_ZOMBIE, ""), (None, None)
            case RestoreRefusal():
                key, found = (row.run_id, Counted.REFUSED_POINT, ""), (None, None)
            case _:
                continue
        tallies.setdefault(key, _Tally()).add(1, *found)
    for key, tally in tallies.items():
        _store(*key, tally)


def ever(rows: QuerySet[Any], what: Counted, run_pk: int) -> int:
    """How many `rows`, all of that run, there are and were."""
    there = rows.order_by().values("run").annotate(count=Count("pk")).values_list("count")
    gone = PrunedCount.objects.filter(run=run_pk, what=what).values_list("count")
    return sum(count for (count,) in there.union(gone, all=True))


def forget(run: Run) -> None:
    """Its rows are made anew, those that were deleted, too: they will be deleted again."""
    PrunedCount.objects.filter(run=run).delete()


def _counted_of(row: Checkpoint) -> Counted:
    return Counted.FAILED if row.status == CheckpointStatus.FAILED else Counted.DISCARDED


def _store(run: int, what: Counted, reason_name: str, tally: _Tally) -> None:
    rows = PrunedCount.objects.select_for_update()
    row, _ = rows.get_or_create(run_id=run, what=what, reason_name=reason_name)
    tally.add(row.count, row.newest_id, row.newest_at)
    row.count, row.newest_id, row.newest_at = tally.count, tally.newest_id, tally.newest_at
    row.save()
