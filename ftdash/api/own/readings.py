"""Addresses that read, one for each query."""

from django.http import HttpRequest
from ninja import Query

from ftdash.accounts import queries as account_queries
from ftdash.accounts.queries import AdminActionView, PersonView, TokenView
from ftdash.alerts import queries as alert_queries
from ftdash.alerts.queries import AlertHistory, AlertView, ChannelView, RuleView
from ftdash.api.own.door import api, missing
from ftdash.api.own.shapes import (
    AskingForEvents,
    AskingForHistory,
    CheckpointInPath,
    InPath,
    Limit,
    Name,
    Page,
    Text,
)
from ftdash.checkpoints import guarantee, history
from ftdash.checkpoints import queries as checkpoint_queries
from ftdash.checkpoints.answers import AlignmentTimeline, CheckpointHistory, RecoveryPoint
from ftdash.checkpoints.guarantee import AuditView, Ledger
from ftdash.checkpoints.history import HistoryPart
from ftdash.checkpoints.statistics import RunStatistics, statistics_of
from ftdash.eventlog.lines import Cursor
from ftdash.eventlog.queries import LogPage, log_page
from ftdash.gameday import queries as game_day_queries
from ftdash.gameday.queries import GameDays, GameDayView
from ftdash.jobs import point_services, queries, run_queries
from ftdash.jobs.answers import PipelinePage, QuarantinedView, RecoveryAxis, RequestView
from ftdash.jobs.fleet_answers import Fleet
from ftdash.jobs.lineage import LineageRun
from ftdash.jobs.point_services import Restore
from ftdash.jobs.recovery_points import PointChoice, point_choice
from ftdash.jobs.run_queries import RunFacts
from ftdash.metrics import queries as metric_queries
from ftdash.metrics.answers import SamplePoint
from ftdash.metrics.loads import RunLoads, run_loads
from pipelines.domain.preflight_verdict import Verdict


@api.get("/pipelines", response=Fleet)
def pipelines(request: HttpRequest) -> Fleet:
    """Every pipeline in one line, those that need attention first."""
    return queries.fleet()


@api.get("/pipelines/{name}", response=PipelinePage)
def pipeline(request: HttpRequest, name: InPath) -> PipelinePage:
    """With its newest run, and what can be done to it now."""
    found = queries.pipeline_page(name)
    if found is None:
        raise missing(f"pipeline {name!r}")
    return found


@api.get("/pipelines/{name}/lineage", response=list[LineageRun])
def lineage(request: HttpRequest, name: InPath) -> list[LineageRun]:
    """Which run was forked from which point of which other."""
    found = queries.lineage(name)
    if found is None:
        raise missing(f"pipeline {name!r}")
    return found


@api.get("/pipelines/{name}/recovery-points", response=list[RecoveryPoint])
def recovery_points(request: HttpRequest, name: InPath, limit: Limit = 50) -> list[RecoveryPoint]:
    """What a run can be restored from, newest first."""
    return checkpoint_queries.recovery_points(name, limit)


@api.get("/pipelines/{name}/recovery-choice", response=PointChoice)
def recovery_choice(request: HttpRequest, name: InPath, limit: Limit = 50) -> PointChoice:
    """How fit each recovery point is, and which one to restore, with the reason."""
    found = point_choice(name, limit)
    if found is None:
        raise missing(f"pipeline {name!r}")
    return found


@api.get("/pipelines/{name}/preflight", response=Verdict)
def preflight(
    request: HttpRequest, name: InPath, path: Text, allow_non_restored_state: bool = False
) -> Verdict:
    """What speaks for and against restoring from the point; nothing is read in full or started."""
    return point_services.preflight(
        Restore(
            pipeline=name,
            path=path,
            allow_non_restored_state=allow_non_restored_state,
            reads_files=False,
        )
    )


@api.get("/runs", response=list[RunFacts])
def runs(request: HttpRequest) -> list[RunFacts]:
    """All that live and the newest that are over."""
    return run_queries.runs()


@api.get("/runs/{run_id}", response=RunFacts)
def run(request: HttpRequest, run_id: InPath) -> RunFacts:
    found = run_queries.run(run_id)
    if found is None:
        raise missing(f"run {run_id!r}")
    return found


@api.get("/runs/{run_id}/checkpoints", response=CheckpointHistory)
def checkpoints(
    request: HttpRequest, run_id: InPath, page: Page = 1, per_page: Limit = 25
) -> CheckpointHistory:
    """Newest first; a page beyond the last is the last."""
    found = checkpoint_queries.checkpoints(run_id, page, per_page)
    if found is None:
        raise missing(f"run {run_id!r}")
    return found


@api.get("/runs/{run_id}/checkpoints/statistics", response=RunStatistics)
def statistics(request: HttpRequest, run_id: InPath) -> RunStatistics:
    """Counts, the latest of each kind, and how sizes and durations are spread."""
    found = statistics_of(run_id)
    if found is None:
        raise missing(f"run {run_id!r}")
    return found


@api.get("/runs/{run_id}/checkpoints/history", response=HistoryPart)
def checkpoint_history(
    request: HttpRequest, run_id: InPath, asked: Query[AskingForHistory]
) -> HistoryPart:
    """Those that a filter lets through, newest first; a part names where its neighbours are."""
    found = history.history(
        run_id, asked.chosen, after=asked.after, before=asked.before, limit=asked.limit
    )
    if found is None:
        raise missing(f"run {run_id!r}")
    return found


@api.get("/runs/{run_id}/checkpoints/{checkpoint_id}", response=AlignmentTimeline)
def checkpoint(
    request: HttpRequest, run_id: InPath, checkpoint_id: CheckpointInPath
) -> AlignmentTimeline:
    """What each subtask and channel did, and which was the slowest."""
    found = checkpoint_queries.alignment(run_id, checkpoint_id)
    if found is None:
        raise missing(f"checkpoint {checkpoint_id} of run {run_id!r}")
    return found


@api.get("/runs/{run_id}/recoveries", response=RecoveryAxis)
def recoveries(request: HttpRequest, run_id: InPath) -> RecoveryAxis:
    """Failures, recoveries with their phases, and recovery points on one axis, oldest first."""
    found = queries.recovery_axis(run_id)
    if found is None:
        raise missing(f"run {run_id!r}")
    return found


@api.get("/runs/{run_id}/quarantine", response=list[QuarantinedView])
def quarantine(request: HttpRequest, run_id: InPath, limit: Limit = 50) -> list[QuarantinedView]:
    """Records that no operator is given any more, newest first; their values are in files."""
    found = queries.quarantine(run_id, limit)
    return [] if found is None else found.records


@api.get("/runs/{run_id}/samples", response=list[SamplePoint])
def samples(request: HttpRequest, run_id: InPath, limit: Limit = 600) -> list[SamplePoint]:
    """What was measured once a second, oldest first."""
    return metric_queries.samples(run_id, limit)


@api.get("/runs/{run_id}/loads", response=RunLoads)
def loads(request: HttpRequest, run_id: InPath) -> RunLoads:
    """What each subtask did in the newest sample: busy, backpressured, idle, and its watermark."""
    found = run_loads(run_id)
    if found is None:
        raise missing(f"sample of run {run_id!r}")
    return found


@api.get("/runs/{run_id}/ledger", response=Ledger)
def run_ledger(request: HttpRequest, run_id: InPath, limit: Limit = 50) -> Ledger:
    """What each checkpoint read and gave to its sinks, newest first."""
    if run_queries.run(run_id) is None:
        raise missing(f"run {run_id!r}")
    return guarantee.ledger(run_id, limit)


@api.get("/pipelines/{name}/audits", response=list[AuditView])
def audits(request: HttpRequest, name: InPath, limit: Limit = 20) -> list[AuditView]:
    """What reading the output again has found, newest first."""
    return guarantee.audits(name, limit)


@api.get("/events", response=LogPage)
def events(
    request: HttpRequest,
    asked: Query[AskingForEvents],
) -> LogPage:
    """What happened and what people did, newest first; `before` is the `older` of a page."""
    return log_page(asked.asked, Cursor.parse(asked.before), asked.limit)


@api.get("/game-days", response=GameDays)
def game_days(request: HttpRequest, pipeline: Name | None = None, limit: Limit = 50) -> GameDays:
    """Faults on purpose, newest first, and the score of all of them."""
    return game_day_queries.game_days(pipeline, limit)


@api.get("/game-days/{key}", response=GameDayView)
def game_day(request: HttpRequest, key: CheckpointInPath) -> GameDayView:
    """How far it has come, or how it was judged and by what."""
    found = game_day_queries.game_day(key)
    if found is None:
        raise missing(f"game day {key}")
    return found


@api.get("/requests", response=list[RequestView])
def requests(request: HttpRequest, limit: Limit = 50) -> list[RequestView]:
    """The audit log, newest first."""
    return queries.requests(limit=limit)


@api.get("/requests/{request_id}", response=RequestView)
def one_request(request: HttpRequest, request_id: InPath) -> RequestView:
    """How far it has come."""
    found = queries.request(request_id)
    if found is None:
        raise missing(f"request {request_id!r}")
    return found


@api.get("/tokens", response=list[TokenView])
def api_tokens(request: HttpRequest) -> list[TokenView]:
    """Names and scopes; a secret is known to its owner alone."""
    return account_queries.tokens()


@api.get("/people", response=list[PersonView])
def people(request: HttpRequest) -> list[PersonView]:
    """Who may sign in, with which role; who was shut out last."""
    return account_queries.people()


@api.get("/settings/log", response=list[AdminActionView])
def settings_log(request: HttpRequest, limit: Limit = 50) -> list[AdminActionView]:
    """What was changed beside pipelines, newest first."""
    return account_queries.admin_actions(limit)


@api.get("/alerts", response=list[AlertView])
def firing_alerts(request: HttpRequest) -> list[AlertView]:
    """What fires now; those that nobody looks after come first."""
    return alert_queries.firing()


@api.get("/alerts/history", response=AlertHistory)
def alert_history(request: HttpRequest, page: Page = 1, per_page: Limit = 25) -> AlertHistory:
    """What fired and has cleared, newest first; a page beyond the last is the last."""
    return alert_queries.history(page, per_page)


@api.get("/alerts/rules", response=list[RuleView])
def alert_rules(request: HttpRequest) -> list[RuleView]:
    """With the pipelines for which each fires, or is close to it."""
    return alert_queries.rules()


@api.get("/alerts/channels", response=list[ChannelView])
def alert_channels(request: HttpRequest) -> list[ChannelView]:
    """Where alerts are told, and what became of the newest message; no secret is in it."""
    return alert_queries.channels()
