"""Looks at the files of watched queries again and again, and stores what they show.

Never writes into a directory of a query, and never needs it to stop. Each look is due after ten
times as long as the last one took, and after `LOOK_EVERY` at least, so that a large directory or a
slow store takes a tenth of a worker at most.
"""

import time
from datetime import timedelta

import msgspec
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from ftdash.errands import isolated
from ftdash.watching import reading
from ftdash.watching.models import DirectoryReading, WatchedQuery
from ftdash.watching.progress import understood
from ftdash.watching.services.reports import standing_of, store, store_from_files
from pipelines.domain.errors import Rejected, Retryable

LOOK_EVERY = timedelta(seconds=10)
LOOK_SHARE = 10
TASK_BUDGET_S = 5.0
PROBLEM_LENGTH_MAX = 1_000


def look_at_files() -> bool:
    """Look where it is due. True: there is more than this call had time for."""
    ends_s = time.monotonic() + TASK_BUDGET_S
    has_more = False
    for row in WatchedQuery.objects.filter(removed_at=None):
        if time.monotonic() > ends_s:
            return True
        with isolated(f"The look at the files of {row.name}"):
            if row.directory:
                _look_into_directory(row)
            if row.event_log:
                has_more |= _go_on_reading(row)
    return has_more


def keep_look(row: WatchedQuery, look: reading.DirectoryLook, *, took_ms: float) -> None:
    """Within a transaction that holds the row."""
    if row.query_id and look.found.query_id and look.found.query_id != row.query_id:
        _keep_problem(
            row,
            f"{row.directory} now belongs to the query {look.found.query_id}, and this page is"
            f" about {row.query_id}; watch the other one under a name of its own.",
        )
        return
    before = DirectoryReading.objects.filter(query=row).values_list("found", flat=True).first()
    found = msgspec.to_builtins(look.found)
    DirectoryReading.objects.update_or_create(
        query=row,
        defaults={"at": timezone.now(), "took_ms": took_ms, "problem": "", "found": found},
    )
    store_from_files(row, look.batches)
    standing = standing_of(row)
    for each in look.batches:
        standing = standing.after_files(each)
    row.standing = msgspec.to_builtins(standing)
    row.query_id = row.query_id or look.found.query_id
    if before != found:
        row.version += 1
    row.save()


def _look_into_directory(row: WatchedQuery) -> None:
    last = DirectoryReading.objects.filter(query=row).first()
    if last is not None:
        pause = max(LOOK_EVERY, timedelta(milliseconds=LOOK_SHARE * last.took_ms))
        if timezone.now() - last.at < pause:
            return
    began_s = time.monotonic()
    try:
        look = reading.look_into(
            row.directory,
            settings.WATCH_ROOTS,
            output=row.output,
            trigger_interval_ms=row.trigger_interval_ms,
        )
    except (Rejected, Retryable) as problem:
        with transaction.atomic():
            _keep_problem(row, str(problem))
        return
    took_ms = (time.monotonic() - began_s) * 1000
    with transaction.atomic():
        locked = WatchedQuery.objects.select_for_update().filter(pk=row.pk, removed_at=None).first()
        if locked is not None and locked.directory == row.directory:
            keep_look(locked, look, took_ms=took_ms)


def _keep_problem(row: WatchedQuery, problem: str) -> None:
    """What was found before stays, with its time in the past: it may still help."""
    known = DirectoryReading.objects.filter(query=row).first()
    kept = problem[:PROBLEM_LENGTH_MAX]
    if known is None:
        DirectoryReading.objects.create(query=row, at=timezone.now(), problem=kept)
    else:
        known.problem, known.at = kept, timezone.now()
        known.save(update_fields=["problem", "at"])
    WatchedQuery.objects.filter(pk=row.pk).update(version=row.version + 1)


def _go_on_reading(row: WatchedQuery) -> bool:
    """Whether there is more."""
    try:
        step = reading.read_log(row.event_log, settings.WATCH_ROOTS, row.log_positions)
    except (Rejected, Retryable, OSError) as problem:
        WatchedQuery.objects.filter(pk=row.pk).update(log_problem=str(problem)[:PROBLEM_LENGTH_MAX])
        return False
    told, _ = understood(step.events, timezone.now())
    with transaction.atomic():
        locked = WatchedQuery.objects.select_for_update().filter(pk=row.pk, removed_at=None).first()
        if locked is None or locked.log_positions != row.log_positions:
            return False
        ids = {each.query_id for each in told}
        if not locked.query_id and len(ids) == 1:
            locked.query_id = ids.pop()
        own = [each for each in told if each.query_id == locked.query_id]
        locked.log_positions = step.positions
        locked.log_problem = "" if locked.query_id or not told else _several(ids)
        store(locked, own) if own else locked.save()
    return step.has_more


def _several(ids: set[str]) -> str:
    return (
        f"The event log has {len(ids)} queries: {', '.join(sorted(ids)[:5])}; register each with"
        " its query id."
    )
