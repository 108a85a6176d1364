"""Addresses that read, one for each query: pipelines, runs, their checkpoints and savepoints.

A worker verifies, reads and compares savepoints; these addresses read its results. `actions` has
the addresses that take, label and delete a savepoint.
"""

from django.http import HttpRequest
from ninja import Query, Status

from ftdash.api.own import shapes
from ftdash.api.own.door import Entered, api, known
from ftdash.api.own.shapes import (
    Count,
    EventsQuery,
    HistoryQuery,
    InPath,
    Limit,
    Name,
    NumberInPath,
    Page,
    Pairs,
    Text,
)
from ftdash.checkpoints.answers import (
    AlignmentTimeline,
    CheckpointHistory,
    RecoveryPoint,
    Savepoint,
    SavepointPage,
)
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.checkpoints.queries import guarantee
from ftdash.checkpoints.queries import savepoints as savepoint_queries
from ftdash.checkpoints.queries import statistics as measured
from ftdash.checkpoints.queries.detail import ComparedCheckpoints, compared
from ftdash.checkpoints.queries.guarantee import AuditView, Ledger
from ftdash.checkpoints.queries.statistics import HistoryPart, RunStatistics, statistics_of
from ftdash.eventlog.queries import Cursor, LogPage, log_page
from ftdash.gameday import queries as game_day_queries
from ftdash.gameday.queries import GameDays, GameDayView
from ftdash.incidents import queries as incident_queries
from ftdash.incidents.queries import IncidentView
from ftdash.jobs.answers import PipelinePage, QuarantinedView, RecoveryAxis, RequestView
from ftdash.metrics.queries import loads as metric_queries
from ftdash.metrics.queries.loads import RunLoads, SamplePoint, run_loads
from ftdash.points import queries as lineage_queries
from ftdash.points.queries import LineageRun, PointChoice, point_choice
from ftdash.points.services import comparisons
from ftdash.points.services import restore as point_services
from ftdash.points.services.comparisons import Comparison
from ftdash.points.services.restore import Restore
from ftdash.runs.fleet_answers import Fleet
from ftdash.runs.queries import pipelines as queries
from ftdash.runs.queries import runs as run_queries
from ftdash.runs.queries.planning import MeasuredPlan, measured_plan
from ftdash.runs.queries.runs import RunFacts
from ftdash.upgrades import queries as upgrade_queries
from ftdash.upgrades.queries import PackageView, UpgradeView
from pipelines.domain.errors import InvariantViolated
from pipelines.points.contents import OperatorInside, RowsPage, ShelfLife
from pipelines.points.verdict import Verdict


@api.get("/pipelines", response=Fleet)
def pipelines(request: HttpRequest) -> Fleet:
    """Every pipeline in one line, those that need attention first."""
    return queries.fleet()


@api.get("/pipelines/{name}", response=PipelinePage)
def pipeline(request: HttpRequest, name: InPath) -> PipelinePage:
    """The pipeline with its newest run, and the actions that are possible now."""
    return known(queries.pipeline_page(name), f"pipeline {name!r}")


@api.get("/incidents", response=list[IncidentView])
def incidents(request: HttpRequest, pipeline: Name | None = None) -> list[IncidentView]:
    """The open incidents, of all pipelines or of one: cause, next step, and present state."""
    return incident_queries.open_incidents(pipeline)


@api.get("/incidents/{key}", response=IncidentView)
def incident(request: HttpRequest, key: NumberInPath) -> IncidentView:
    """One incident, open or over."""
    return known(incident_queries.incident(key), f"incident {key}")


@api.get("/pipelines/{name}/lineage", response=list[LineageRun])
def lineage(request: HttpRequest, name: InPath) -> list[LineageRun]:
    """Which run was restored from which point of which other run."""
    return known(lineage_queries.lineage(name), f"pipeline {name!r}")


@api.get("/pipelines/{name}/recovery-points", response=list[RecoveryPoint])
def recovery_points(request: HttpRequest, name: InPath, limit: Limit = 50) -> list[RecoveryPoint]:
    """The points from which a run can be restored, newest first."""
    return checkpoint_queries.recovery_points(name, limit)


@api.get("/pipelines/{name}/recovery-choice", response=PointChoice)
def recovery_choice(request: HttpRequest, name: InPath, limit: Limit = 50) -> PointChoice:
    """How fit each recovery point is, and which one to restore, with the reason."""
    return known(point_choice(name, limit), f"pipeline {name!r}")


@api.get("/pipelines/{name}/preflight", response=Verdict)
def preflight(
    request: HttpRequest,
    name: InPath,
    path: Text,
    renamed: Pairs,
    accepted_gaps: Pairs,
    allow_non_restored_state: bool = False,
) -> Verdict:
    """Findings for and against a restore from the point; reads no file in full, starts nothing.

    `renamed`: OLD=NEW, an operator's uid in the point and its uid now.
    `accepted_gaps`: SOURCE SPLIT FIRST-LAST, with the values from `gaps` of an answer.
    """
    return point_services.preflight(
        Restore(
            pipeline=name,
            path=path,
            allow_non_restored_state=allow_non_restored_state,
            renamed=dict(each.partition("=")[::2] for each in renamed),
            accepted_gaps=accepted_gaps,
            reads_files=False,
        )
    )


@api.get("/pipelines/{name}/planner", response=MeasuredPlan)
def planner(request: HttpRequest, name: InPath) -> MeasuredPlan:
    """How often to checkpoint, from the measurements so far."""
    return known(measured_plan(name), f"pipeline {name!r} that had a run")


@api.get("/runs", response=list[RunFacts])
def runs(request: HttpRequest) -> list[RunFacts]:
    """All living runs and the newest that have ended."""
    return run_queries.runs()


@api.get("/runs/{run_id}", response=RunFacts)
def run(request: HttpRequest, run_id: InPath) -> RunFacts:
    return known(run_queries.run(run_id), f"run {run_id!r}")


@api.get("/runs/{run_id}/recoveries", response=RecoveryAxis)
def recoveries(request: HttpRequest, run_id: InPath) -> RecoveryAxis:
    """Failures, recoveries with their phases, and recovery points on one axis, oldest first."""
    return known(queries.recovery_axis(run_id), f"run {run_id!r}")


@api.get("/runs/{run_id}/quarantine", response=list[QuarantinedView])
def quarantine(request: HttpRequest, run_id: InPath, limit: Limit = 50) -> list[QuarantinedView]:
    """Quarantined records, newest first; their values are in files."""
    found = queries.quarantine(run_id, limit)
    return [] if found is None else found.records


@api.get("/runs/{run_id}/samples", response=list[SamplePoint])
def samples(request: HttpRequest, run_id: InPath, limit: Limit = 600) -> list[SamplePoint]:
    """The samples, one per second, oldest first."""
    return metric_queries.samples(run_id, limit)


@api.get("/runs/{run_id}/loads", response=RunLoads)
def loads(request: HttpRequest, run_id: InPath) -> RunLoads:
    """The newest sample of each subtask: busy, backpressured, idle, and its watermark."""
    return known(run_loads(run_id), f"sample of run {run_id!r}")


@api.get("/runs/{run_id}/ledger", response=Ledger)
def run_ledger(request: HttpRequest, run_id: InPath, limit: Limit = 50) -> Ledger:
    """What each checkpoint read and gave to its sinks, newest first."""
    known(run_queries.run(run_id), f"run {run_id!r}")
    return guarantee.ledger(run_id, limit)


@api.get("/pipelines/{name}/audits", response=list[AuditView])
def audits(request: HttpRequest, name: InPath, limit: Limit = 20) -> list[AuditView]:
    """The results of reading the output again, newest first."""
    return guarantee.audits(name, limit)


@api.get("/events", response=LogPage)
def events(
    request: HttpRequest,
    query: Query[EventsQuery],
) -> LogPage:
    """Events and people's actions, newest first; pass a page's `older` as `before`."""
    return log_page(query.filters, Cursor.parse(query.before), query.limit)


@api.get("/game-days", response=GameDays)
def game_days(request: HttpRequest, pipeline: Name | None = None, limit: Limit = 50) -> GameDays:
    """Faults on purpose, newest first, and the score of all of them."""
    return game_day_queries.game_days(pipeline, limit)


@api.get("/game-days/{key}", response=GameDayView)
def game_day(request: HttpRequest, key: NumberInPath) -> GameDayView:
    """How far it has come, or its verdict and the reasons."""
    return known(game_day_queries.game_day(key), f"game day {key}")


@api.get("/packages", response=list[PackageView])
def packages(request: HttpRequest) -> list[PackageView]:
    """The packages of authors that this installation keeps."""
    return upgrade_queries.packages()


@api.get("/pipelines/{name}/upgrades", response=list[UpgradeView])
def upgrades(request: HttpRequest, name: InPath, limit: Limit = 10) -> list[UpgradeView]:
    """The upgrades of the pipeline, newest first."""
    known(queries.pipeline_page(name), f"pipeline {name!r}")
    return upgrade_queries.upgrade_views(name, limit)


@api.get("/pipelines/{name}/upgrades/{request_id}", response=UpgradeView)
def one_upgrade(request: HttpRequest, name: InPath, request_id: InPath) -> UpgradeView:
    """How far the upgrade has come: each step with its times and its outcome."""
    found = upgrade_queries.upgrade_view(name, request_id)
    return known(found, f"upgrade {request_id!r} of pipeline {name!r}")


@api.get("/requests", response=list[RequestView])
def requests(request: HttpRequest, limit: Limit = 50) -> list[RequestView]:
    """The audit log, newest first."""
    return queries.requests(limit=limit)


@api.get("/requests/{request_id}", response=RequestView)
def one_request(request: HttpRequest, request_id: InPath) -> RequestView:
    """How far the request has come."""
    return known(queries.request(request_id), f"request {request_id!r}")


@api.get("/runs/{run_id}/checkpoints", response=CheckpointHistory)
def checkpoints(
    request: HttpRequest, run_id: InPath, page: Page = 1, per_page: Limit = 25
) -> CheckpointHistory:
    """Checkpoints, newest first; a page beyond the last gives the last page."""
    return known(checkpoint_queries.checkpoints(run_id, page, per_page), f"run {run_id!r}")


@api.get("/runs/{run_id}/checkpoints/statistics", response=RunStatistics)
def statistics(request: HttpRequest, run_id: InPath) -> RunStatistics:
    """Counts, the latest of each kind, and the distribution of sizes and durations."""
    return known(statistics_of(run_id), f"run {run_id!r}")


@api.get("/runs/{run_id}/checkpoints/history", response=HistoryPart)
def checkpoint_history(
    request: HttpRequest, run_id: InPath, query: Query[HistoryQuery]
) -> HistoryPart:
    """Checkpoints that match a filter, newest first; a part names the places of its neighbours."""
    found = measured.history(
        run_id, query.chosen, after=query.after, before=query.before, limit=query.limit
    )
    return known(found, f"run {run_id!r}")


@api.get("/runs/{run_id}/checkpoints/{checkpoint_id}", response=AlignmentTimeline)
def checkpoint(
    request: HttpRequest, run_id: InPath, checkpoint_id: NumberInPath
) -> AlignmentTimeline:
    """The part of each subtask and channel, and which was the slowest."""
    found = checkpoint_queries.alignment(run_id, checkpoint_id, is_whole=True)
    return known(found, f"checkpoint {checkpoint_id} of run {run_id!r}")


@api.get("/runs/{run_id}/checkpoints/{checkpoint_id}/comparison", response=ComparedCheckpoints)
def comparison_of_checkpoints(
    request: HttpRequest, run_id: InPath, checkpoint_id: NumberInPath, other: Count
) -> ComparedCheckpoints:
    """Compare a checkpoint with another one of the run, and say why one of them took longer."""
    found = compared(run_id, checkpoint_id, other)
    return known(found, f"checkpoint {checkpoint_id} or {other} of run {run_id!r}")


ASKED = 202


@api.get("/pipelines/{name}/savepoints", response=SavepointPage)
def savepoints(
    request: HttpRequest, name: InPath, page: Page = 1, per_page: Limit = 25
) -> SavepointPage:
    """Savepoints, newest first, including those without files.

    A page beyond the last gives the last page.
    """
    return savepoint_queries.savepoints(name, page, per_page)


@api.get("/savepoints/{savepoint_key}", response=Savepoint)
def savepoint(request: HttpRequest, savepoint_key: InPath) -> Savepoint:
    return _savepoint(savepoint_key)


@api.get("/savepoints/{savepoint_key}/operators", response=list[OperatorInside])
def operators_in_savepoint(request: HttpRequest, savepoint_key: InPath) -> list[OperatorInside]:
    """Its operators, according to its manifest."""
    return savepoint_queries.operators_in(_savepoint(savepoint_key).path)


@api.get("/savepoints/{savepoint_key}/rows", response=RowsPage)
def rows_in_savepoint(
    request: HttpRequest,
    *,
    savepoint_key: InPath,
    uid: Text,
    state: Text,
    column: Text = "",
    value: Text = "",
    part: Count = 0,
    row: Count = 0,
) -> RowsPage:
    """Some rows of one state, from the place that the previous page gave as `next`."""
    looked = savepoint_queries.Looked(uid, state, column, value, part, row)
    return savepoint_queries.rows_in(_savepoint(savepoint_key).path, looked)


@api.get("/savepoints/{savepoint_key}/shelf-life", response=ShelfLife)
def shelf_life(request: HttpRequest, savepoint_key: InPath) -> ShelfLife:
    """How long it can be restored, as far as its sources and sinks know now."""
    return savepoint_queries.shelf_life_of(_savepoint(savepoint_key))


@api.get("/savepoints/{savepoint_key}/comparison", response=Comparison)
def comparison_of_savepoints(
    request: HttpRequest, savepoint_key: InPath, since: Text
) -> Comparison:
    """The changes since another savepoint, as far as a worker has compared them."""
    found = comparisons.comparison_of(_savepoint(since).path, _savepoint(savepoint_key).path)
    return known(found, f"comparison of {savepoint_key!r} with {since!r}; ask for one")


@api.post("/savepoints/{savepoint_key}/verification", response={ASKED: Savepoint})
def verify_savepoint(request: Entered, savepoint_key: InPath) -> Status[Savepoint]:
    """Have every byte of a savepoint read again; `reading` in the answer gives the progress."""
    point_services.begin_inspection(_savepoint(savepoint_key).path)
    return Status(ASKED, _savepoint(savepoint_key))


@api.post("/savepoints/{savepoint_key}/comparison", response={ASKED: Comparison})
def compare_savepoints(
    request: Entered, savepoint_key: InPath, body: shapes.ComparisonBody
) -> Status[Comparison]:
    """Have a savepoint compared with another one, from the other one to this one."""
    left, right = _savepoint(body.since).path, _savepoint(savepoint_key).path
    comparisons.ask(left, right, request.auth.name)
    found = comparisons.comparison_of(left, right)
    if found is None:
        raise InvariantViolated("a comparison that was asked for is found")
    return Status(ASKED, found)


def _savepoint(key: str) -> Savepoint:
    return known(savepoint_queries.savepoint(key), f"savepoint {key!r}")
