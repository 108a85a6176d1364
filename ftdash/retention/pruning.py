"""Deletes history that is older than it is kept, in batches, so that no writer waits long for it.

Never what a recovery point or savepoint needs that is still there: of checkpoints, only rows of
those that failed or whose files are gone; of a run's states, the newest of each; the newest lab.
What was counted stays counted (`pruned_counts`).
"""

import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Max, Model, Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone

from ftdash.alerts.models import Alert, Delivery
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.history import limits
from ftdash.history.limits import Counter, Tally, kept_for
from ftdash.history.models import Counted, Kind
from ftdash.jobs.models import (
    DamageFinding,
    Failure,
    Leftover,
    Recovery,
    RepeatedOutput,
    RestoreRefusal,
    Run,
    StatusChange,
    SupersededOutput,
    TargetTakeover,
    ZombieRefusal,
)
from ftdash.lab.models import Lab, LabState
from ftdash.metrics.models import Sample

BATCH = 500
TASK_BUDGET_S = 5.0

Rows = QuerySet[Any]


def prune() -> bool:
    """Whether there is more to delete than this call had time for."""
    ends_s = time.monotonic() + TASK_BUDGET_S
    for kind in Kind:
        for rows in older(kind, kept_for(kind)):
            while _delete_batch(rows):
                if time.monotonic() > ends_s:
                    return True
    return False


def count_older(kind: Kind, keep: timedelta) -> int:
    """How many rows would be deleted were it kept for so long."""
    return sum(rows.count() for rows in older(kind, keep))


def older(kind: Kind, keep: timedelta) -> list[Rows]:
    if kind is Kind.METRICS:
        return _metrics(keep)
    return _OLDER[kind](timezone.now() - keep)


def _metrics(keep: timedelta) -> list[Rows]:
    """Measured from the newest of each run: one that has ended keeps its last hours."""
    newest = Sample.objects.order_by().values("run").annotate(at=Max("at"))
    found = newest.values_list("run", "at")
    return [Sample.objects.filter(run_id=run, at__lt=at - keep) for run, at in found]


def _checkpoints(before: datetime) -> list[Rows]:
    ended_at = Coalesce("failed_at", "completed_at", "trigger_at")
    gone = Checkpoint.objects.filter(
        status__in=(CheckpointStatus.FAILED, CheckpointStatus.DISCARDED)
    )
    origins = Run.objects.exclude(restored_from=None).values("restored_from")
    return [
        gone.annotate(ended_at=ended_at)
        .filter(ended_at__lt=before)
        .exclude(Q(path__isnull=False) & Q(path__in=origins))
    ]


def _events(before: datetime) -> list[Rows]:
    newest = StatusChange.objects.order_by().values("run", "status").annotate(key=Max("pk"))
    statuses = StatusChange.objects.filter(at__lt=before).exclude(pk__in=newest.values("key"))
    others = (
        DamageFinding,
        Failure,
        Recovery,
        RepeatedOutput,
        RestoreRefusal,
        SupersededOutput,
        Leftover,
        TargetTakeover,
        ZombieRefusal,
    )
    return [statuses, *(model.objects.filter(at__lt=before) for model in others)]


def _alerts(before: datetime) -> list[Rows]:
    tests = Delivery.objects.filter(alert=None, created_at__lt=before)
    return [Alert.objects.filter(cleared_at__lt=before), tests]


def _labs(before: datetime) -> list[Rows]:
    newest = Lab.objects.filter(state=LabState.ENDED).aggregate(key=Max("pk"))["key"]
    return [Lab.objects.filter(ended_at__lt=before).exclude(pk=newest)]


_OLDER: dict[Kind, Callable[[datetime], list[Rows]]] = {
    Kind.CHECKPOINTS: _checkpoints,
    Kind.EVENTS: _events,
    Kind.ALERTS: _alerts,
    Kind.LABS: _labs,
}


def _delete_batch(rows: Rows) -> bool:
    """Whether there was anything."""
    keys = list(rows.order_by("pk").values_list("pk", flat=True)[:BATCH])
    if keys:
        going = rows.model._default_manager.filter(pk__in=keys)
        with transaction.atomic():
            limits.add(_tallies(going.order_by("pk").select_for_update()))
            going.delete()
    return bool(keys)


def _tallies(rows: Iterable[Model]) -> dict[Counter, Tally]:
    """Of the rows that programs and monitors count."""
    found: dict[Counter, Tally] = {}
    for row in rows:
        match row:
            case Checkpoint():
                counter = Counter(row.run_id, _counted_of(row), row.reason_name)
                newest = row.checkpoint_id, row.failed_at
            case Recovery() if row.restored_checkpoint_id is not None:
                counter, newest = Counter(row.run_id, Counted.RESTORED), (None, None)
            case ZombieRefusal():
                counter, newest = Counter(row.run_id, Counted.REFUSED_ZOMBIE), (None, None)
            case RestoreRefusal():
                counter, newest = Counter(row.run_id, Counted.REFUSED_POINT), (None, None)
            case _:
                continue
        found.setdefault(counter, Tally()).add(1, *newest)
    return found


def _counted_of(row: Checkpoint) -> Counted:
    return Counted.FAILED if row.status == CheckpointStatus.FAILED else Counted.DISCARDED
