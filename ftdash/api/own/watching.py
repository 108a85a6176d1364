"""Addresses of watched Structured Streaming queries: for listeners, for programs, and for works.

A listener sends many events at once. ftdash checks each by itself: the answer names a malformed
event, and the others still count.

Savepoints, rewinds and looks into state are works. Their addresses answer at once, and a process
carries the work out; ask the work's own address until its state is SUCCEEDED or FAILED.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from django.http import HttpRequest
from ninja import Field, Schema
from pydantic import WithJsonSchema

from ftdash.api.own.door import REPORTING, Entered, api, known
from ftdash.api.own.labs import described
from ftdash.api.own.shapes import Changing, Count, InPath, Name, Number, NumberInPath, Page, Text
from ftdash.watching import queries
from ftdash.watching.incident_signs import Limits
from ftdash.watching.models import WorkKind, WorkState
from ftdash.watching.progress import BatchFigures, Event
from ftdash.watching.queries import QueryBrief, incidents, works
from ftdash.watching.queries.incidents import WatchedIncidentView
from ftdash.watching.query_status import QueryState
from ftdash.watching.services import forks, registration, reports, savepoints, state
from ftdash.watching.services.registration import Sighting
from ftdash.watching.services.reports import Report
from ftdash.watching.services.savepoints import KEEP_DAYS_MAX
from ftdash.watching.work_requests import LookAtState, Rewind, StatePlace, TakeSavepoint
from pipelines.domain.errors import Rejected, Retryable
from pipelines.structured.fork import Boundaries
from pipelines.structured.moving import Move
from pipelines.structured.preflight import CONTENT_BYTES_MAX, Output
from pipelines.structured.repartition import PARTITIONS_MAX

EVENTS_MAX = 1_000
BATCHES_PER_PAGE = 200


class ListenerReport(Schema):
    """`dropped` maps a query id to how many events this listener has dropped since it started."""

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
    """`ignored` counts events of removed queries; `problems` says what was malformed."""

    taken: int
    ignored: int
    problems: list[str]


class LimitsShape(Schema):
    """Null means judged by the usual figures of the query; a batch may then take any time."""

    late_after_s: float | None = Field(default=None, gt=0, le=1e9)
    lag_max: int | None = Field(default=None, gt=0, le=2**53)
    batch_max_s: float | None = Field(default=None, gt=0, le=1e9)


class QueryAnswer(Schema):
    """Times are UTC; null means not known yet."""

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


class WatchedQueryBody(Changing):
    """At least one of `directory`, `event_log` and `query_id`."""

    name: Name
    directory: Text = ""
    event_log: Text = ""
    query_id: Text = ""
    output: Text = ""
    trigger_interval_ms: int | None = Field(default=None, ge=1, le=2**53)


class LimitsBody(LimitsShape, Changing):
    """Sets all limits: one that you leave out becomes the usual."""


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
def watch_query(request: Entered, body: WatchedQueryBody) -> QueryAnswer:
    """Watch a query, or add facts about one that is watched."""
    given = body.dict()
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
def set_limits(request: Entered, name: InPath, body: LimitsBody) -> QueryAnswer:
    """Set when incidents of the query open."""
    known(queries.brief(name), f"watched query {name}")
    limits = Limits(**{each: getattr(body, each) for each in Limits.__struct_fields__})
    who = request.auth.name
    registration.set_limits(name=name, limits=limits, requester=who, reason=body.reason)
    return _answer(known(queries.brief(name), f"watched query {name}"))


@api.post("/watched-queries/{name}/remove", response=list[QueryAnswer])
def remove_query(request: Entered, name: InPath, body: Changing) -> list[QueryAnswer]:
    """Stop watching a query, and delete its history; the answer lists the remaining queries."""
    known(queries.brief(name), f"watched query {name}")
    registration.remove(name=name, requester=request.auth.name, reason=body.reason)
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


BATCH_MAX = 2**53


class SavepointAnswer(Schema):
    """`problems` lists what the newest verification found altered. Times are UTC."""

    key: int
    label: str
    location: str
    batch_id: int
    keeps_next: bool
    store: str
    size_bytes: int
    file_count: int
    digest: str
    taken_by: str
    taken_at: datetime
    verified_at: datetime | None
    problems: list[str]
    keep_until: datetime | None
    deleted_at: datetime | None


class WorkAnswer(Schema):
    """`result` depends on the kind: a savepoint, a verdict with its findings, a fork, or rows."""

    key: int
    kind: WorkKind
    state: WorkState
    requester: str
    created_at: datetime
    ended_at: datetime | None
    step: str
    done: int
    of: int
    problem: str
    savepoint: int | None
    result: dict[str, Any]


class Taking(Changing):
    """`batch_id` null means the newest complete one; `keep_days` null, until it is deleted."""

    label: Text
    batch_id: int | None = Field(default=None, ge=0, le=BATCH_MAX)
    keeps_next: bool = False
    keep_days: float | None = Field(default=None, gt=0, le=KEEP_DAYS_MAX)


class Keeping(Changing):
    """`days` count from now; null means without end."""

    days: float | None = Field(default=None, gt=0, le=KEEP_DAYS_MAX)


class Deleting(Changing):
    """`confirmation` is the savepoint's label."""

    confirmation: Text


class Rewinding(Changing):
    """`savepoint` is the one to start from; null means the query's directory.

    `partitions` is the number of partitions for the fork's state; null leaves it as it is.
    `explained` is the text of the file that `explain` of ftdash_listener has written.
    """

    batch_id: int = Field(ge=0, le=BATCH_MAX)
    target: Text
    savepoint: Number | None = None
    boundaries: Literal["same", "new"] = "new"
    output: Literal["new", "rewound", "handled", "same files"] = "new"
    output_target: Text = ""
    partitions: int | None = Field(default=None, ge=1, le=PARTITIONS_MAX)
    explained: str = Field(default="", max_length=CONTENT_BYTES_MAX)

    def rewind(self) -> Rewind:
        return Rewind(
            batch_id=self.batch_id,
            target=self.target,
            savepoint=self.savepoint,
            boundaries=Boundaries(self.boundaries),
            output=Output(self.output),
            output_target=self.output_target,
            partitions=self.partitions,
            explained=self.explained,
        )


class Place(Schema):
    batch_id: int = Field(ge=0, le=BATCH_MAX)
    savepoint: Number | None = None

    def state_place(self) -> StatePlace:
        return StatePlace(batch_id=self.batch_id, savepoint=self.savepoint)


class Looking(Changing):
    """With `other`, the answer has the rows that only one of the two has."""

    place: Place
    other: Place | None = None
    operator_id: int = Field(default=0, ge=0, le=10_000)
    store: Text = "default"
    key: Text = ""


@api.get("/watched-queries/{name}/savepoints", response=list[SavepointAnswer])
def query_savepoints(request: HttpRequest, name: InPath) -> list[SavepointAnswer]:
    """Savepoints of a query, newest first, including deleted ones."""
    known(queries.brief(name), f"watched query {name}")
    return [SavepointAnswer.from_orm(each) for each in works.savepoints(name)]


@api.post("/watched-queries/{name}/savepoints", response=WorkAnswer)
def take_query_savepoint(request: Entered, name: InPath, body: Taking) -> WorkAnswer:
    """Copy one batch of a query, which may be running."""
    known(queries.brief(name), f"watched query {name}")
    given = body.dict()
    reason = given.pop("reason")
    key = savepoints.ask_to_take(
        name, TakeSavepoint(**given), requester=request.auth.name, reason=reason
    )
    return _work(name, key)


@api.get("/watched-queries/{name}/savepoints/{key}", response=dict[str, Any])
def query_savepoint_manifest(
    request: HttpRequest, name: InPath, key: NumberInPath
) -> dict[str, Any]:
    """The manifest of a savepoint: every file with length and digest."""
    known(works.savepoint(name, key), f"savepoint {key} of {name}")
    found: dict[str, Any] = msgspec.json.decode(works.manifest(name, key))
    return found


@api.post("/watched-queries/{name}/savepoints/{key}/verification", response=WorkAnswer)
def verify_query_savepoint(
    request: Entered, name: InPath, key: NumberInPath, body: Changing
) -> WorkAnswer:
    """Read every file of a savepoint, and compare it with its digest."""
    known(works.savepoint(name, key), f"savepoint {key} of {name}")
    who = request.auth.name
    return _work(name, savepoints.ask_to_verify(name, key, requester=who, reason=body.reason))


@api.post("/watched-queries/{name}/savepoints/{key}/shelf-life", response=SavepointAnswer)
def keep_query_savepoint(
    request: Entered, name: InPath, key: NumberInPath, body: Keeping
) -> SavepointAnswer:
    """Set how long a savepoint is kept from now on."""
    known(works.savepoint(name, key), f"savepoint {key} of {name}")
    who = request.auth.name
    savepoints.keep(name, key, days=body.days, requester=who, reason=body.reason)
    return SavepointAnswer.from_orm(works.savepoint(name, key))


@api.post("/watched-queries/{name}/savepoints/{key}/deletion", response=WorkAnswer)
def delete_query_savepoint(
    request: Entered, name: InPath, key: NumberInPath, body: Deleting
) -> WorkAnswer:
    """Delete the files of a savepoint."""
    known(works.savepoint(name, key), f"savepoint {key} of {name}")
    made = savepoints.ask_to_delete(
        name,
        key,
        confirmation=body.confirmation,
        requester=request.auth.name,
        reason=body.reason,
    )
    return _work(name, made)


@api.post("/watched-queries/{name}/verdicts", response=WorkAnswer)
def judge_rewind(request: Entered, name: InPath, body: Rewinding) -> WorkAnswer:
    """Give the verdict on a rewind; this writes nothing."""
    known(queries.brief(name), f"watched query {name}")
    who = request.auth.name
    key = forks.ask_for_verdict(name, body.rewind(), requester=who, reason=body.reason)
    return _work(name, key)


@api.post("/watched-queries/{name}/forks", response=WorkAnswer)
def fork_query(request: Entered, name: InPath, body: Rewinding) -> WorkAnswer:
    """Rewind a query into a fork, unless the verdict refuses it."""
    known(queries.brief(name), f"watched query {name}")
    who = request.auth.name
    key = forks.ask_for_fork(name, body.rewind(), requester=who, reason=body.reason)
    return _work(name, key)


@api.post("/watched-queries/{name}/state", response=WorkAnswer)
def look_into_state(request: Entered, name: InPath, body: Looking) -> WorkAnswer:
    """Read rows of a query's state, or the differences between two places."""
    known(queries.brief(name), f"watched query {name}")
    look = LookAtState(
        place=body.place.state_place(),
        other=None if body.other is None else body.other.state_place(),
        operator_id=body.operator_id,
        store=body.store,
        key=body.key,
    )
    who = request.auth.name
    return _work(name, state.ask_to_look(name, look, requester=who, reason=body.reason))


@api.get("/watched-queries/{name}/incidents", response=list[WatchedIncidentView])
def query_incidents(request: HttpRequest, name: InPath) -> list[WatchedIncidentView]:
    """Incidents of a query, the open ones first."""
    known(queries.brief(name), f"watched query {name}")
    return incidents.incidents(name, with_closed=True)


@api.get("/watched-queries/{name}/move", response=Move)
def where_to_go_on(
    request: HttpRequest,
    name: InPath,
    batch_id: Count | None = None,
    savepoint: Count | None = None,
) -> Move:
    """Where a pipeline starts after a batch, and which parts of the query stay behind.

    The default is the newest complete batch.
    """
    known(queries.brief(name), f"watched query {name}")
    try:
        found = works.newest_point(name, savepoint) if batch_id is None else batch_id
        if found is None:
            raise Rejected(f"{name} has no complete batch; give `batch_id`.")
        return works.move(name, found, savepoint)
    except Retryable as problem:
        raise Rejected(str(problem)) from problem


@api.get("/watched-queries/{name}/works/{key}", response=WorkAnswer)
def query_work(request: HttpRequest, name: InPath, key: NumberInPath) -> WorkAnswer:
    """How far a work has come, and its result."""
    return _work(name, key)


def _work(name: str, key: int) -> WorkAnswer:
    return WorkAnswer.from_orm(known(works.work(name, key), f"work {key} of {name}"))
