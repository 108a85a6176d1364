"""Deletes history that has reached its age limit: rows, segments of journals, marks and logs.

It deletes rows in batches, so that no writer waits long. It never deletes what an existing recovery
point or savepoint needs. Of checkpoints, it deletes only rows of those that failed or whose files
are gone. The newest of each of a run's states stays, and so does the newest lab. Counts still
include deleted rows (`history.limits`).

`bus.journal_segments` decides which segments of a journal may go. A driver does not need old ones,
because its newest segment begins with a summary; the projector stores its offset in the database.
During an audit, none is deleted. A mark in an inbox keeps a request that is delivered twice
(`supervision.drivers`) from being carried out twice; it is deleted when the journal may forget the
request. The logs in the directories of runs are kept short: a run of several months may fail every
minute, and logs the reason each time.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Max, Model, Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone

from ftdash.alerts.models import Alert, Delivery
from ftdash.checkpoints.models import Audit, Checkpoint, CheckpointStatus
from ftdash.checkpoints.queries.guarantee import is_silent
from ftdash.errands import isolated
from ftdash.history import limits
from ftdash.history.limits import Counter, Tally, kept_for
from ftdash.history.models import Counted, Kind
from ftdash.incidents.models import Incident
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import (
    OPEN_PHASES,
    DamageFinding,
    Failure,
    Leftover,
    Recovery,
    RepeatedOutput,
    Request,
    RestoreRefusal,
    Run,
    StatusChange,
    SupersededOutput,
    TargetTakeover,
    ZombieRefusal,
)
from ftdash.lab.models import Lab, LabState
from ftdash.metrics.models import Sample
from ftdash.watching.models import RunEvent, WatchedBatch
from pipelines.bus.inbox import done_before, forget
from pipelines.bus.journal_segments import closed_segments, delete_segments, expendable
from pipelines.disk.files import FOR_ALL, replace_atomically

BATCH = 500
TASK_BUDGET_S = 5.0

Rows = QuerySet[Any]


def prune() -> bool:
    """Returns True if there is more to delete than this call had time for."""
    ends_s = time.monotonic() + TASK_BUDGET_S
    for kind in Kind:
        for rows in older(kind, kept_for(kind)):
            while _delete_batch(rows):
                if time.monotonic() > ends_s:
                    return True
    return False


def count_older(kind: Kind, keep: timedelta) -> int:
    """Returns how many rows would be deleted if the kind were kept for this long."""
    return sum(rows.count() for rows in older(kind, keep))


def older(kind: Kind, keep: timedelta) -> list[Rows]:
    if kind is Kind.METRICS:
        return _metrics(keep)
    return _OLDER[kind](timezone.now() - keep)


def _metrics(keep: timedelta) -> list[Rows]:
    """Measures age from the newest sample of each run: one that has ended keeps its last hours."""
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
    over = Incident.objects.filter(closed_at__lt=before)
    return [statuses, over, *(model.objects.filter(at__lt=before) for model in others)]


def _alerts(before: datetime) -> list[Rows]:
    tests = Delivery.objects.filter(alert=None, created_at__lt=before)
    return [Alert.objects.filter(cleared_at__lt=before), tests]


def _labs(before: datetime) -> list[Rows]:
    newest = Lab.objects.filter(state=LabState.ENDED).aggregate(key=Max("pk"))["key"]
    return [Lab.objects.filter(ended_at__lt=before).exclude(pk=newest)]


def _queries(before: datetime) -> list[Rows]:
    return [WatchedBatch.objects.filter(at__lt=before), RunEvent.objects.filter(at__lt=before)]


_OLDER: dict[Kind, Callable[[datetime], list[Rows]]] = {
    Kind.CHECKPOINTS: _checkpoints,
    Kind.EVENTS: _events,
    Kind.ALERTS: _alerts,
    Kind.LABS: _labs,
    Kind.QUERIES: _queries,
}


def _delete_batch(rows: Rows) -> bool:
    """Deletes one batch. Returns True if there was anything."""
    keys = list(rows.order_by("pk").values_list("pk", flat=True)[:BATCH])
    if keys:
        going = rows.model._default_manager.filter(pk__in=keys)
        with transaction.atomic():
            limits.add(_tallies(going.order_by("pk").select_for_update()))
            going.delete()
    return bool(keys)


def _tallies(rows: Iterable[Model]) -> dict[Counter, Tally]:
    """Counts those of the rows that programs and monitors count."""
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


log = logging.getLogger("ftdash.history")


def shorten_journals() -> None:
    """Shortens the journals of all runs, ended ones too; keeps the newest segment of each."""
    now = timezone.now()
    if not all(is_silent(audit, now) for audit in Audit.objects.filter(ended_at=None)):
        return
    runs = Run.objects.select_related("pipeline")
    for run in runs.only("run_id", "journal_offset", "pipeline__name"):
        with isolated(f"The shortening of the journal of {run.run_id}"):
            _shorten(run)


def _shorten(run: Run) -> None:
    keep = timedelta(days=settings.JOURNAL_RETENTION_DAYS)
    closed = closed_segments(run_directory(run).journal_file)
    going = expendable(closed, run.journal_offset, time.time() - keep.total_seconds())
    if not going:
        return
    # Stored first: it marks rows that can no longer be rebuilt.
    Run.objects.filter(pk=run.pk).update(journal_begins=going[-1].end)
    delete_segments([each.segment for each in going])
    log.info("The journal of %s was shortened: it begins at byte %d.", run.run_id, going[-1].end)


def forget_old_requests() -> None:
    for run in Run.objects.select_related("pipeline").only("run_id", "pipeline__name"):
        with isolated(f"The forgetting of old requests to {run.run_id}"):
            _forget(run)


def _forget(run: Run) -> None:
    keep = timedelta(days=settings.JOURNAL_RETENTION_DAYS)
    directory = run_directory(run)
    old = done_before(directory, time.time() - keep.total_seconds())
    if not old:
        return
    still_open = Request.objects.filter(run=run, phase__in=OPEN_PHASES)
    for request_id in set(old) - set(still_open.values_list("request_id", flat=True)):
        forget(directory, request_id)


LOGS = ("driver.log", "audit.log")


def shorten_logs() -> None:
    for run in Run.objects.select_related("pipeline").only("run_id", "pipeline__name"):
        for name in LOGS:
            with isolated(f"The shortening of {name} of {run.run_id}"):
                shorten(run_directory(run).path / name)


def shorten(log: Path) -> None:
    """Moves the end of a long log to a file next to it, `driver.log.1`, then empties the log.

    That file replaces the previous one. The log is emptied in place, because its writers have it
    open for appending. Lines that they write in between are lost.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return
    if size <= settings.RUN_LOG_BYTES_MAX:
        return
    with log.open("rb") as file:
        file.seek(size - settings.RUN_LOG_BYTES_MAX)
        file.readline()  # the first line may be cut in two
        newest = file.read()
    replace_atomically(log.with_name(f"{log.name}.1"), newest, FOR_ALL)
    os.truncate(log, 0)
