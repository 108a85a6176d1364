"""Addresses of watched Structured Streaming queries: for listeners, and for programs that read.

A listener sends many events at once. Each is judged by itself: a malformed one is named in the
answer and takes no other one with it.
"""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from django.http import HttpRequest
from ninja import Field, Schema
from pydantic import WithJsonSchema

from ftdash.api.own.door import REPORTING, Entered, api, known
from ftdash.api.own.labs import described
from ftdash.api.own.shapes import Changing, InPath, Name, Page, Text
from ftdash.watching import queries
from ftdash.watching.progress import BatchFigures, Event
from ftdash.watching.queries import QueryBrief
from ftdash.watching.services import registration, reports
from ftdash.watching.services.registration import Sighting
from ftdash.watching.services.reports import Report
from ftdash.watching.standing import QueryState
from ftdash.watching.trouble import Limits

EVENTS_MAX = 1_000
BATCHES_PER_PAGE = 200


class ListenerReport(Schema):
    """`dropped`: by query id, how many events this listener has dropped since it was started."""

    events: Annotated[
        list[dict[str, Any]],
        WithJsonSchema(
            {"type": "array", "items": described(Event).json_schema, "maxItems": EVENTS_MAX}
        ),
    ] = Field(max_length=EVENTS_MAX)
    dropped: dict[str, int] = Field(default={}, max_length=EVENTS_MAX)
    listener: str = Field(default="", max_length=64)
    version: str = Field(default="", max_length=40)
    spark: str = Field(default="", max_length=40)


class ReportAnswer(Schema):
    """`ignored`: of queries that a person has removed. `problems`: what was malformed."""

    taken: int
    ignored: int
    problems: list[str]


class LimitsShape(Schema):
    """None: judged by what is usual for the query; a batch may then take as long as it takes."""

    late_after_s: float | None = Field(default=None, gt=0, le=1e9)
    lag_max: int | None = Field(default=None, gt=0, le=2**53)
    batch_max_s: float | None = Field(default=None, gt=0, le=1e9)


class QueryAnswer(Schema):
    """Times are UTC; None: not known yet."""

    name: str
    query_id: str
    directory: str
    event_log: str
    state: QueryState
    heard_at: datetime | None
    last_committed_at: datetime | None
    data_moved_at: datetime | None
    newest_batch_id: int | None
    restart_count: int
    dropped_events: int
    limits: LimitsShape


class AskingToWatch(Changing):
    """At least one of `directory`, `event_log` and `query_id`."""

    name: Name
    directory: Text = ""
    event_log: Text = ""
    query_id: Text = ""
    output: Text = ""
    trigger_interval_ms: int | None = Field(default=None, ge=1, le=2**53)


class AskingForLimits(LimitsShape, Changing):
    """All of them: what is left out becomes the usual."""


@api.post("/watched-queries/events", response=ReportAnswer, **REPORTING)
def report_events(request: Entered, report: ListenerReport) -> ReportAnswer:
    """Store what a listener reports; an event that comes twice counts once."""
    given = {name: getattr(report, name) for name in ListenerReport.model_fields}
    taken = reports.take_in(Report(**given), reporter=request.auth.name)
    return ReportAnswer(taken=taken.taken, ignored=taken.ignored, problems=taken.problems)


@api.get("/watched-queries", response=list[QueryAnswer])
def watched_queries(request: HttpRequest) -> list[QueryAnswer]:
    """All watched queries, by name."""
    return [_answer(each) for each in queries.watched()]


@api.post("/watched-queries", response=QueryAnswer)
def watch_query(request: Entered, asked: AskingToWatch) -> QueryAnswer:
    """Watch a query, or tell more about one that is watched."""
    given = asked.dict()
    name, reason = given.pop("name"), given.pop("reason")
    registration.watch(
        name=name, seen=Sighting(**given), requester=request.auth.name, reason=reason
    )
    return _answer(known(queries.brief(name), f"watched query {name}"))


@api.get("/watched-queries/{name}", response=QueryAnswer)
def watched_query(request: HttpRequest, name: InPath) -> QueryAnswer:
    """One watched query."""
    return _answer(known(queries.brief(name), f"watched query {name}"))


@api.post("/watched-queries/{name}/limits", response=QueryAnswer)
def set_limits(request: Entered, name: InPath, asked: AskingForLimits) -> QueryAnswer:
    """Set when incidents of the query open."""
    known(queries.brief(name), f"watched query {name}")
    limits = Limits(**{each: getattr(asked, each) for each in Limits.__struct_fields__})
    who = request.auth.name
    registration.set_limits(name=name, limits=limits, requester=who, reason=asked.reason)
    return _answer(known(queries.brief(name), f"watched query {name}"))


@api.post("/watched-queries/{name}/remove", response=list[QueryAnswer])
def remove_query(request: Entered, name: InPath, asked: Changing) -> list[QueryAnswer]:
    """Watch it no longer, and delete its history; answers what is still watched."""
    known(queries.brief(name), f"watched query {name}")
    registration.remove(name=name, requester=request.auth.name, reason=asked.reason)
    return [_answer(each) for each in queries.watched()]


@api.get(
    "/watched-queries/{name}/batches",
    response=list[Annotated[dict[str, Any], described(BatchFigures)]],
)
def batches(request: HttpRequest, name: InPath, page: Page = 1) -> list[dict[str, Any]]:
    """Batches, newest first, 200 on a page."""
    known(queries.brief(name), f"watched query {name}")
    found = queries.batches(name, page=page, per_page=BATCHES_PER_PAGE)
    return [msgspec.to_builtins(each.figures) for each in found.rows]


def _answer(found: QueryBrief) -> QueryAnswer:
    return QueryAnswer(
        name=found.name,
        query_id=found.query_id,
        directory=found.directory,
        event_log=found.event_log,
        state=found.state,
        heard_at=found.heard_at,
        last_committed_at=found.last_committed_at,
        data_moved_at=found.data_moved_at,
        newest_batch_id=found.newest.batch_id if found.newest else None,
        restart_count=found.restart_count,
        dropped_events=found.dropped_events,
        limits=LimitsShape(**msgspec.to_builtins(found.limits)),
    )
