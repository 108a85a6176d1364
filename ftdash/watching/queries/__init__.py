"""Reads watched queries: the fleet, one query, its batches, and one of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec
from django.db.models import Count, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from ftdash.watching.incident_signs import LAG_BATCHES, Limits, Seen
from ftdash.watching.models import (
    DirectoryReading,
    ListenerSeen,
    QuerySavepoint,
    RunEvent,
    RunEventKind,
    WatchedBatch,
    WatchedQuery,
)
from ftdash.watching.progress import TOTAL, BatchFigures
from ftdash.watching.queries import incidents, works
from ftdash.watching.queries.incidents import WatchedIncidentView
from ftdash.watching.queries.works import SavepointView, WorkView
from ftdash.watching.query_status import SILENT_AFTER, QueryState, words_of
from ftdash.watching.reading import Found
from ftdash.watching.services.reports import UNKNOWN_RUN, status_of
from pipelines.structured.findings import Severity

LATE_INTERVALS = 3
"""A query is silent after this many trigger intervals, if these are long."""

RUN_EVENTS_MAX = 20
INTERVAL_BATCHES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryBrief:
    """One watched query as the fleet shows it; None: not known yet."""

    name: str
    query_id: str
    directory: str
    event_log: str
    state: QueryState
    heard_at: datetime | None
    last_committed_at: datetime | None
    data_moved_at: datetime | None
    newest: BatchFigures | None
    run_id: str
    restart_count: int
    dropped_events: int
    problem: str  # why a directory or log could not be read
    damage_count: int  # findings of the doctor that are damage
    failure: str  # the error of the newest run, if that failed
    limits: Limits

    @property
    def words(self) -> str:
        return words_of(self.state)

    @property
    def needs_attention(self) -> bool:
        urgent = (QueryState.FAILED, QueryState.STALE)
        return self.state in urgent or bool(self.problem or self.damage_count)

    @property
    def duration_ms(self) -> int | None:
        return self.newest.duration_ms if self.newest else None

    @property
    def input_rows_per_s(self) -> float | None:
        return self.newest.input_rows_per_s if self.newest else None

    @property
    def processed_rows_per_s(self) -> float | None:
        return self.newest.processed_rows_per_s if self.newest else None

    @property
    def as_of(self) -> datetime | None:
        known = filter(None, (self.heard_at, self.last_committed_at))
        return max(known, default=None)


@dataclass(frozen=True, slots=True)
class RunEventView:
    kind: RunEventKind
    run_id: str
    at: datetime
    error_class: str
    message: str


@dataclass(frozen=True, slots=True)
class ListenerView:
    listener: str
    version: str
    spark: str
    dropped: int
    heard_at: datetime


@dataclass(frozen=True, slots=True)
class BatchView:
    key: int
    run_id: str  # empty: only the files show this batch
    figures: BatchFigures


@dataclass(frozen=True, slots=True)
class BatchPage:
    rows: list[BatchView]  # newest first
    page: int
    pages: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDetail:
    brief: QueryBrief
    now: datetime
    output: str
    created_by: str
    created_at: datetime
    trigger_interval_ms: int | None  # as a person gave it
    seen_interval_ms: float | None  # as the starts of the newest batches show it
    batches: BatchPage
    run_events: list[RunEventView]  # newest first
    listeners: list[ListenerView]
    reading_at: datetime | None  # of the directory; None: never
    reading_took_ms: float
    found: Found | None
    savepoints: list[SavepointView]
    works: list[WorkView]
    incidents: list[WatchedIncidentView]  # those that are open

    @property
    def interval_ms(self) -> float | None:
        return self.trigger_interval_ms or self.seen_interval_ms


def watched() -> list[QueryBrief]:
    """Returns those that need attention first, then the others by name."""
    now = timezone.now()
    briefs = [_brief(row, now) for row in _rows()]
    return sorted(briefs, key=lambda each: (not each.needs_attention, each.name))


def brief(name: str) -> QueryBrief | None:
    row = _rows().filter(name=name).first()
    return None if row is None else _brief(row, timezone.now())


def versions() -> dict[str, str]:
    """Returns a token per query that changes with its pages, for the event stream. Cheap."""
    rows = WatchedQuery.objects.filter(removed_at=None).values_list("name", "version")
    return {resource(name): str(version) for name, version in rows}


def resource(name: str) -> str:
    """Returns the query's name in the event stream; no pipeline can have such a name."""
    return f"watched/{name}"


def detail(name: str, *, page: int, per_page: int) -> QueryDetail | None:
    row = _rows().filter(name=name).first()
    if row is None:
        return None
    now = timezone.now()
    reading = DirectoryReading.objects.filter(query=row).first()
    return QueryDetail(
        brief=_brief(row, now),
        now=now,
        output=row.output,
        created_by=row.created_by,
        created_at=row.created_at,
        trigger_interval_ms=row.trigger_interval_ms,
        seen_interval_ms=_seen_interval_ms(row),
        batches=_page(row, page, per_page),
        run_events=[
            RunEventView(RunEventKind(e.kind), e.run_id, e.at, e.error_class, e.message)
            for e in RunEvent.objects.filter(query=row)[:RUN_EVENTS_MAX]
        ],
        listeners=[
            ListenerView(e.listener, e.version, e.spark, e.dropped, e.heard_at)
            for e in ListenerSeen.objects.filter(query=row)[:RUN_EVENTS_MAX]
        ],
        reading_at=(reading.found_at or reading.at) if reading else None,
        reading_took_ms=reading.took_ms if reading else 0.0,
        found=msgspec.convert(reading.found, Found) if reading and reading.found else None,
        savepoints=works.savepoints_of(row),
        incidents=incidents.incidents(name),
        works=works.works_of(row),
    )


def batches(name: str, *, page: int, per_page: int) -> BatchPage:
    """Returns batches newest first. A page number beyond the last gives the last page."""
    row = WatchedQuery.objects.filter(name=name, removed_at=None).first()
    return BatchPage([], 1, 1, 0) if row is None else _page(row, page, per_page)


def batch(name: str, key: int) -> BatchView | None:
    found = WatchedBatch.objects.filter(query__name=name, query__removed_at=None, pk=key).first()
    return None if found is None else _view(found)


def neighbours(name: str, key: int) -> tuple[int | None, int | None]:
    """Returns the keys of the batches before and after it, in time."""
    rows = WatchedBatch.objects.filter(query__name=name)
    at = rows.filter(pk=key).values_list("at", flat=True).first()
    if at is None:
        return None, None
    before = rows.filter(at__lt=at).order_by("-at").values_list("pk", flat=True).first()
    after = rows.filter(at__gt=at).order_by("at").values_list("pk", flat=True).first()
    return before, after


def run_failure(name: str, run_id: str) -> RunEventView | None:
    """Returns how the run ended, if it failed."""
    found = RunEvent.objects.filter(
        query__name=name, run_id=run_id, kind=RunEventKind.FAILED
    ).first()
    if found is None:
        return None
    kind = RunEventKind(found.kind)
    return RunEventView(kind, found.run_id, found.at, found.error_class, found.message)


def seen_for_incidents(now: datetime) -> Iterator[tuple[int, Seen]]:
    """Yields the facts that the judge of incidents needs, with the key of each query."""
    for row in _rows():
        found_brief = _brief(row, now)
        reading = getattr(row, "directory_reading", None)
        findings = reading.found.get("findings", []) if reading and reading.found else []
        newest = WatchedBatch.objects.filter(query=row)[:LAG_BATCHES]
        yield (
            row.pk,
            Seen(
                now=now,
                state=found_brief.state,
                failure=found_brief.failure,
                last_committed_at=found_brief.last_committed_at,
                interval_ms=row.trigger_interval_ms or _usual_interval_ms(row),
                batch_id=found_brief.newest.batch_id if found_brief.newest else None,
                batch_ms=found_brief.duration_ms,
                limits=found_brief.limits,
                lags=_lags(newest),
                damage=[f["text"] for f in findings if f["severity"] == Severity.ERROR.value],
                altered=[
                    each.label
                    for each in QuerySavepoint.objects.filter(query=row, deleted_at=None)
                    if each.problems
                ],
            ),
        )


def _lags(newest: Iterable[WatchedBatch]) -> list[int]:
    """Returns the lags of all sources together, up to the first batch that does not report them."""
    found = []
    for each in newest:
        lags = [source.get("lag") for source in each.figures.get("sources", [])]
        known = [lag[TOTAL] for lag in lags if lag and TOTAL in lag]
        if not known:
            break
        found.append(sum(known))
    return found


def _usual_interval_ms(row: WatchedQuery) -> float | None:
    """Returns the median distance between the starts of the newest batches."""
    rows = WatchedBatch.objects.filter(query=row)[:INTERVAL_BATCHES]
    starts = sorted(set(rows.values_list("at", flat=True)))
    gaps = [(after - before) / timedelta(milliseconds=1) for before, after in pairwise(starts)]
    return median(gaps) if len(gaps) >= 3 else None


def _rows() -> QuerySet[WatchedQuery, Any]:
    lost = ListenerSeen.objects.filter(query=OuterRef("pk")).values("query")
    failed = RunEvent.objects.filter(query=OuterRef("pk"), kind=RunEventKind.FAILED)
    return (
        WatchedQuery.objects.filter(removed_at=None)
        .select_related("directory_reading")
        .annotate(
            lost=Coalesce(Subquery(lost.annotate(sum=Sum("dropped")).values("sum")), 0),
            failed_run=Subquery(failed.values("run_id")[:1]),
            failed_class=Subquery(failed.values("error_class")[:1]),
            failed_text=Subquery(failed.values("message")[:1]),
        )
    )


def _brief(row: Any, now: datetime) -> QueryBrief:
    """`row` is one of `_rows`, with its annotations."""
    status = status_of(row)
    reading = getattr(row, "directory_reading", None)
    interval = timedelta(milliseconds=LATE_INTERVALS * (row.trigger_interval_ms or 0))
    state = status.state(now, max(SILENT_AFTER, interval))
    is_failed = state is QueryState.FAILED and row.failed_run == status.run_id
    failure = row.failed_class or first_line(row.failed_text) if is_failed else ""
    found = reading.found if reading else {}
    return QueryBrief(
        name=row.name,
        query_id=row.query_id,
        directory=row.directory,
        event_log=row.event_log,
        state=state,
        heard_at=status.heard_at,
        last_committed_at=status.last_committed_at,
        data_moved_at=status.data_moved_at,
        newest=status.newest.figures if status.newest else None,
        run_id=status.run_id,
        restart_count=row.restart_count,
        dropped_events=row.lost,
        problem=(reading.problem if reading else "") or row.log_problem,
        damage_count=found.get("damage_count", 0),
        failure=failure or ("unknown error" if is_failed else ""),
        limits=msgspec.convert(row.limits or {}, Limits),
    )


def first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _seen_interval_ms(row: WatchedQuery) -> float | None:
    """Returns the median distance between starts, if batches are much shorter than that.

    Batches that run back to back show no interval, so then there is none to see.
    """
    newest = list(
        WatchedBatch.objects.filter(query=row)
        .exclude(run_id=UNKNOWN_RUN)
        .values_list("at", "duration_ms")[:INTERVAL_BATCHES]
    )
    starts = [at for at, _ in newest]
    gaps = sorted((after - before).total_seconds() * 1000 for after, before in pairwise(starts))
    durations = sorted(took for _, took in newest if took is not None)
    if len(gaps) < 3 or not durations:
        return None
    gap, duration = gaps[len(gaps) // 2], durations[len(durations) // 2]
    return gap if gap > 1.2 * duration else None


def _page(row: WatchedQuery, page: int, per_page: int) -> BatchPage:
    rows = WatchedBatch.objects.filter(query=row)
    count = rows.aggregate(count=Count("pk"))["count"]
    pages = max(1, -(-count // per_page))
    page = min(page, pages)
    found = rows[(page - 1) * per_page : page * per_page]
    return BatchPage([_view(each) for each in found], page, pages, count)


def _view(row: WatchedBatch) -> BatchView:
    return BatchView(row.pk, row.run_id, msgspec.convert(row.figures, BatchFigures))
