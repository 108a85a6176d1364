"""Reads pages of the log, newest first: a few rows of each source, merged by time.

A page continues at the place of the previous page's last line, not at a page number. So new lines
shift nothing, and the thousandth page costs no more than the first.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone

from ftdash.eventlog.sources import SOURCES, Asked, Cursor, Line, Source

BATCH = 500


@dataclass(frozen=True, slots=True)
class LogPage:
    """`older` is where the next page begins; None: there are no older lines."""

    now: datetime
    lines: list[Line]
    older: str | None


def log_page(asked: Asked, cursor: Cursor | None, limit: int) -> LogPage:
    found = _lines(asked, cursor, limit + 1)
    older = str(Cursor.behind(found[limit - 1])) if len(found) > limit else None
    return LogPage(timezone.now(), found[:limit], older)


def whole_log(asked: Asked) -> Iterator[list[Line]]:
    """Every line, newest first, a batch at a time; each row is read once."""
    each = [_all_of(source, index, asked) for index, source in _sources(asked)]
    merged = heapq.merge(*each, key=_place)
    while lines := list(islice(merged, BATCH)):
        yield lines


def actors() -> list[str]:
    """All people who ever asked for something."""
    found: set[str] = set()
    for source in SOURCES:
        if source.actor:
            names = source.rows().order_by().values_list(source.actor, flat=True)
            found.update(names.distinct())
    return sorted(found - {""})


def _lines(asked: Asked, cursor: Cursor | None, limit: int) -> list[Line]:
    each = [
        [_line(row, index, source) for row in _rows(source, index, asked, cursor)[:limit]]
        for index, source in _sources(asked)
    ]
    return list(islice(heapq.merge(*each, key=_place), limit))


def _all_of(source: Source, index: int, asked: Asked) -> Iterator[Line]:
    """Reads batches, each from where the previous one ended. No query stays open between them,
    because several threads may ask for them."""
    cursor: Cursor | None = None
    while True:
        lines = [_line(row, index, source) for row in _rows(source, index, asked, cursor)[:BATCH]]
        yield from lines
        if len(lines) < BATCH:
            return
        cursor = Cursor.behind(lines[-1])


def _sources(asked: Asked) -> Iterator[tuple[int, Source]]:
    """The sources that may have matching lines, with their index among all."""
    return ((index, each) for index, each in enumerate(SOURCES) if _may_have(each, asked))


def _may_have(source: Source, asked: Asked) -> bool:
    """A filter by person or pipeline excludes sources that have none."""
    is_of_kind = asked.kind in (None, source.kind)
    has_actor = asked.actor is None or bool(source.actor)
    has_pipeline = asked.pipeline is None or bool(source.pipeline)
    return is_of_kind and has_actor and has_pipeline


def _rows(source: Source, index: int, asked: Asked, cursor: Cursor | None) -> QuerySet[Any]:
    rows = source.rows().select_related(*source.parts).order_by(f"-{source.time}", "-pk")
    if asked.pipeline is not None:
        rows = rows.filter(**{f"{source.pipeline}__name": asked.pipeline})
    if asked.actor is not None:
        rows = rows.filter(**{source.actor: asked.actor})
    if source.routine is not None and not asked.with_routine:
        rows = rows.exclude(source.routine)
    if asked.since is not None:
        rows = rows.filter(**{f"{source.time}__gte": asked.since})
    if asked.until is not None:
        rows = rows.filter(**{f"{source.time}__lt": asked.until})
    return rows if cursor is None else rows.filter(_behind(source, index, cursor))


def _behind(source: Source, index: int, cursor: Cursor) -> Q:
    older = Q(**{f"{source.time}__lt": cursor.at})
    up_to = Q(**{f"{source.time}__lte": cursor.at})
    if index == cursor.source:
        # An index can be entered at a time; with an OR of two it is read from its beginning.
        return up_to & (older | Q(pk__lt=cursor.row))
    return up_to if index > cursor.source else older


def _line(row: Any, index: int, source: Source) -> Line:
    told = source.told(row)
    run = getattr(row, "run", None)
    pipeline = row.pipeline if source.pipeline == "pipeline" else run.pipeline if run else None
    return Line(
        at=getattr(row, source.time),
        kind=source.kind,
        what=told.what,
        outcome=told.outcome,
        pipeline=pipeline.name if pipeline else "",
        run_id=run.run_id if run else "",
        actor=getattr(row, source.actor) if source.actor else "",
        why=told.why,
        source=index,
        row=row.pk,
        incident=told.incident,
    )


def _place(line: Line) -> tuple[float, int, int]:
    """Newest first; at equal times in the order of the sources, then the newest row."""
    return -line.at.timestamp(), line.source, -line.row
