"""Stores the reports of listeners, and what event logs and directories show.

A report counts once: a batch is stored under its query, run and batch id, and a standing does not
depend on the order of its events. A query that a listener reports without being registered gets a
row; one that a person has removed is ignored.

Never writes into a directory of a query, and never needs it to stop. The next look is due after ten
times as long as the last one took, and after `LOOK_EVERY` at least, so that a large directory or a
slow store takes a tenth of a worker at most.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify

from ftdash.errands import isolated
from ftdash.watching import reading
from ftdash.watching.models import (
    DirectoryReading,
    ListenerSeen,
    RunEvent,
    RunEventKind,
    WatchedBatch,
    WatchedQuery,
)
from ftdash.watching.progress import BatchFigures, Kind, QueryEvent, understood
from ftdash.watching.query_status import QueryStatus
from pipelines.domain.errors import Rejected, Retryable

QUERIES_MAX = 1_000
ROWS_PER_STATEMENT = 200
NAME_LENGTH_MAX = 80
LABEL_LENGTH_MAX = 40
ID_LENGTH_MAX = 64
COUNT_MAX = 2**62
UNKNOWN_RUN = ""
"""The run id of a batch that only the files of a query show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One message of a listener; `dropped` counts, by query id, since the listener started."""

    events: Sequence[Any]
    dropped: Mapping[str, int]
    listener: str
    version: str = ""
    spark: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """`ignored` events belong to queries that a person has removed."""

    taken: int
    ignored: int
    problems: list[str]


def take_in(report: Report, *, reporter: str) -> Taken:
    """Store what a listener reports. Raises Rejected if there are too many queries."""
    now = timezone.now()
    reported, problems = understood(report.events, now)
    ignored = 0
    by_query: dict[str, list[QueryEvent]] = {}
    for each in reported:
        by_query.setdefault(each.query_id, []).append(each)
    with transaction.atomic():
        rows = _rows(by_query, reporter)
        for query_id, events in by_query.items():
            row = rows[query_id]
            if row.removed_at is not None:
                ignored += len(events)
                continue
            store(row, events)
            _note_listener(row, report, now)
    return Taken(len(reported) - ignored, ignored, problems)


def store(row: WatchedQuery, events: Iterable[QueryEvent]) -> None:
    """Stores events of one query, in any order. Call it in a transaction that holds the row."""
    status = status_of(row)
    before = status.run_id
    batches: list[WatchedBatch] = []
    run_events: dict[tuple[str, str], RunEvent] = {}
    for each in events:
        status = status.after(each)
        if each.batch is not None:
            batches.append(_batch(row, each.run_id, each.batch))
        _note_run(row, each, run_events)
    _insert(batches)
    _forget_files_of(row, batches)
    new_runs = {run_id for run_id, _ in run_events} != {before}
    RunEvent.objects.bulk_create(run_events.values(), ignore_conflicts=True)
    if new_runs:
        starts = RunEvent.objects.filter(query=row, kind=RunEventKind.STARTED).count()
        row.restart_count = max(0, starts - 1)
    row.standing = msgspec.to_builtins(status)
    row.version += 1
    row.save()


def status_of(row: WatchedQuery) -> QueryStatus:
    return msgspec.convert(row.standing, QueryStatus)


def store_from_files(row: WatchedQuery, found: Sequence[BatchFigures]) -> None:
    """Stores batches that a checkpoint directory shows; a listener's figures replace them."""
    if not found:
        return
    ids = [each.batch_id for each in found]
    there = WatchedBatch.objects.filter(query=row, batch_id__gte=min(ids))
    known = set(there.values_list("batch_id", flat=True))
    _insert([_batch(row, UNKNOWN_RUN, each) for each in found if each.batch_id not in known])


def check_free_space() -> None:
    if WatchedQuery.objects.filter(removed_at=None).count() >= QUERIES_MAX:
        raise Rejected(f"{QUERIES_MAX:,} queries are watched; remove one first.")


def _rows(by_query: Mapping[str, Sequence[QueryEvent]], reporter: str) -> dict[str, WatchedQuery]:
    """Returns the locked row of each query; makes the missing ones."""
    rows = WatchedQuery.objects.select_for_update().filter(query_id__in=list(by_query))
    found = {row.query_id: row for row in rows.order_by("pk")}
    for has_id in (False, True):
        missing = [query_id for query_id in by_query if query_id not in found]
        if not missing:
            break
        check_free_space()
        made = [
            WatchedQuery(
                name=_free_name(query_id, by_query[query_id], has_id=has_id),
                query_id=query_id,
                created_by=reporter,
                created_at=timezone.now(),
            )
            for query_id in missing
        ]
        WatchedQuery.objects.bulk_create(made, ignore_conflicts=True)
        found = {row.query_id: row for row in rows.all()}
    return found


def _free_name(query_id: str, events: Sequence[QueryEvent], *, has_id: bool) -> str:
    """Returns the query's own name, with a part of the id if another query has it already."""
    given = slugify(next((each.name for each in events if each.name), "")) or "query"
    ending = f"-{slugify(query_id)[:36]}"
    is_taken = WatchedQuery.objects.filter(name=given[:NAME_LENGTH_MAX]).exists()
    if has_id or is_taken or given == "query":
        return given[: NAME_LENGTH_MAX - len(ending)] + ending
    return given[:NAME_LENGTH_MAX]


def _batch(row: WatchedQuery, run_id: str, figures: BatchFigures) -> WatchedBatch:
    return WatchedBatch(
        query=row,
        run_id=run_id,
        batch_id=figures.batch_id,
        at=figures.at,
        duration_ms=figures.duration_ms,
        rows=figures.rows,
        figures=msgspec.to_builtins(figures),
    )


def _insert(batches: Sequence[WatchedBatch]) -> None:
    WatchedBatch.objects.bulk_create(batches, ignore_conflicts=True, batch_size=ROWS_PER_STATEMENT)


def _forget_files_of(row: WatchedQuery, batches: Sequence[WatchedBatch]) -> None:
    if batches and row.directory:
        ids = [each.batch_id for each in batches]
        WatchedBatch.objects.filter(query=row, run_id=UNKNOWN_RUN, batch_id__in=ids).delete()


def _note_run(row: WatchedQuery, event: QueryEvent, noted: dict[tuple[str, str], RunEvent]) -> None:
    """Notes a start for every run, even for one whose listener was added later."""
    if (event.run_id, RunEventKind.STARTED) not in noted:
        at = event.batch.at if event.batch else event.at
        noted[event.run_id, RunEventKind.STARTED] = RunEvent(
            query=row, run_id=event.run_id, kind=RunEventKind.STARTED, at=at
        )
    if event.kind is Kind.TERMINATED:
        kind = RunEventKind.STOPPED if event.exception is None else RunEventKind.FAILED
        noted[event.run_id, kind] = RunEvent(
            query=row,
            run_id=event.run_id,
            kind=kind,
            at=event.at,
            error_class=event.error_class,
            message=event.exception or "",
        )


def _note_listener(row: WatchedQuery, report: Report, now: datetime) -> None:
    """`dropped` only grows, so that a late report takes nothing back."""
    if not report.listener:
        return
    seen, _ = ListenerSeen.objects.get_or_create(
        query=row,
        listener=report.listener[:ID_LENGTH_MAX],
        defaults={"heard_at": now},
    )
    dropped = min(COUNT_MAX, max(0, report.dropped.get(row.query_id, 0)))
    seen.dropped = max(seen.dropped, dropped)
    seen.heard_at = now
    seen.version = report.version[:LABEL_LENGTH_MAX]
    seen.spark = report.spark[:LABEL_LENGTH_MAX]
    seen.save()


LOOK_EVERY = timedelta(seconds=10)
LOOK_SHARE = 10
TASK_BUDGET_S = 5.0
PROBLEM_LENGTH_MAX = 1_000


def look_at_files() -> bool:
    """Looks at the files that are due. Returns True if this call had no time for some."""
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
    """Stores one look. Call it in a transaction that holds the row."""
    if row.query_id and look.found.query_id and look.found.query_id != row.query_id:
        _keep_problem(
            row,
            f"{row.directory} now belongs to the query {look.found.query_id}, and this page is"
            f" about {row.query_id}; watch the other one under a name of its own.",
        )
        return
    before = DirectoryReading.objects.filter(query=row).values_list("found", flat=True).first()
    found = msgspec.to_builtins(look.found)
    now = timezone.now()
    kept = {"at": now, "took_ms": took_ms, "problem": "", "found": found, "found_at": now}
    DirectoryReading.objects.update_or_create(query=row, defaults=kept)
    store_from_files(row, look.batches)
    status = status_of(row)
    for each in look.batches:
        status = status.after_files(each)
    row.standing = msgspec.to_builtins(status)
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
    """Keeps the earlier findings with their time, because they may still help."""
    known = DirectoryReading.objects.filter(query=row).first()
    kept = problem[:PROBLEM_LENGTH_MAX]
    if known is None:
        DirectoryReading.objects.create(query=row, at=timezone.now(), problem=kept)
    else:
        known.found_at = known.found_at or known.at
        known.problem, known.at = kept, timezone.now()
        known.save(update_fields=["problem", "at", "found_at"])
    WatchedQuery.objects.filter(pk=row.pk).update(version=row.version + 1)


def _go_on_reading(row: WatchedQuery) -> bool:
    """Reads the next part of the event log. Returns True if there is more."""
    try:
        step = reading.read_log(row.event_log, settings.WATCH_ROOTS, row.log_positions)
    except (Rejected, Retryable, OSError) as problem:
        WatchedQuery.objects.filter(pk=row.pk).update(log_problem=str(problem)[:PROBLEM_LENGTH_MAX])
        return False
    reported, _ = understood(step.events, timezone.now())
    with transaction.atomic():
        locked = WatchedQuery.objects.select_for_update().filter(pk=row.pk, removed_at=None).first()
        if locked is None or locked.log_positions != row.log_positions:
            return False
        ids = {each.query_id for each in reported}
        if not locked.query_id and len(ids) == 1:
            locked.query_id = ids.pop()
        own = [each for each in reported if each.query_id == locked.query_id]
        locked.log_positions = step.positions
        locked.log_problem = "" if locked.query_id or not reported else _several(ids)
        store(locked, own) if own else locked.save()
    return step.has_more


def _several(ids: set[str]) -> str:
    return (
        f"The event log has {len(ids)} queries: {', '.join(sorted(ids)[:5])}; register each with"
        " its query id."
    )
