"""The rows' facts about each pipeline's newest run, read once for one answer.

It never asks a driver. Unknown values are None: a run that has ended or is silent has no load, and
a restarting run has none of the attempt before.
"""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from ftdash.checkpoints.queries.checkpoints import waiting_since
from ftdash.checkpoints.queries.statistics import CheckpointMeasures, checkpoint_measures
from ftdash.history.limits import ever
from ftdash.history.models import Counted
from ftdash.jobs.answers import Liveness, ShownState
from ftdash.jobs.models import (
    OPEN_PHASES,
    Pipeline,
    QuarantinedRecord,
    Recovery,
    Request,
    RestoreRefusal,
    Run,
    StatusChange,
    ZombieRefusal,
)
from ftdash.metrics.queries.loads import RunLoads, run_loads
from ftdash.runs.queries.freshness import Observation, observe, shown_state
from ftdash.runs.queries.pipelines import newest_runs
from ftdash.runs.queries.runs import records_to_replay
from ftdash.watching.queries import QueryBrief, watched
from ftdash.watching.queries.incidents import QueryIncidentView, incidents
from ftdash.watching.queries.works import kept_counts
from pipelines.domain.status import JobStatus

SILENT = (ShownState.STALE, ShownState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class StatusTimes:
    """When the run got its present status, and when it last stopped running."""

    status_since: datetime | None
    down_since: datetime | None  # None: it runs, or never ran


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    pipeline: str
    run: Run
    state: ShownState
    now: datetime
    times: StatusTimes
    checkpoints: CheckpointMeasures
    recovery: Recovery | None  # the newest
    refused_zombie_count: int
    refused_point_count: int
    quarantined_count: int
    records_to_replay: int | None
    commit_waits_since: datetime | None  # None: no completed checkpoint waits for its commit
    loads: RunLoads | None

    @property
    def is_live(self) -> bool:
        """True if its state is known, and it has not ended."""
        return self.state not in SILENT and not self.state.is_terminal


@dataclass(frozen=True, slots=True)
class ObservedPipeline:
    name: str
    state: ShownState
    open_request_count: int
    run: ObservedRun | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    projector: Liveness
    reconcile: Liveness
    pipelines: list[ObservedPipeline]
    now: datetime
    queries: list[QueryBrief]
    query_incidents: list[QueryIncidentView]  # that are open
    query_savepoints: dict[str, int]  # by the name of the query: how many are kept


def observed() -> Observed:
    seen = observe()
    asked = Request.objects.filter(phase__in=OPEN_PHASES).order_by().values_list("pipeline")
    open_requests = dict(asked.annotate(Count("pk")))
    return Observed(
        projector=seen.projector,
        reconcile=seen.reconcile,
        pipelines=[
            _pipeline(pipeline, run, seen, open_requests.get(pipeline.pk, 0))
            for pipeline, run in newest_runs()
        ],
        now=seen.now,
        queries=watched(),
        query_incidents=incidents(),
        query_savepoints=kept_counts(),
    )


def _pipeline(
    pipeline: Pipeline, run: Run | None, seen: Observation, open_request_count: int
) -> ObservedPipeline:
    state, _ = shown_state(run, seen)
    return ObservedPipeline(
        name=pipeline.name,
        state=state,
        open_request_count=open_request_count,
        run=_run(pipeline, run, state, seen.now) if run else None,
    )


def _run(pipeline: Pipeline, run: Run, state: ShownState, now: datetime) -> ObservedRun:
    return ObservedRun(
        pipeline=pipeline.name,
        run=run,
        state=state,
        now=now,
        times=_times(run),
        checkpoints=checkpoint_measures(run.pk),
        recovery=Recovery.objects.filter(run=run).order_by("-sequence").first(),
        refused_zombie_count=ever(
            ZombieRefusal.objects.filter(run=run), Counted.REFUSED_ZOMBIE, run.pk
        ),
        refused_point_count=ever(
            RestoreRefusal.objects.filter(run=run), Counted.REFUSED_POINT, run.pk
        ),
        quarantined_count=QuarantinedRecord.objects.filter(run=run).count(),
        records_to_replay=records_to_replay(run),
        commit_waits_since=waiting_since([run.pk]).get(run.pk),
        loads=_loads(run, state),
    )


def _times(run: Run) -> StatusTimes:
    changes = StatusChange.objects.filter(run=run)
    newest = changes.order_by("-sequence").first()
    ran = changes.filter(status=JobStatus.RUNNING.value).order_by("-sequence").first()
    stopped = (
        changes.filter(sequence__gt=ran.sequence).order_by("sequence").first() if ran else None
    )
    return StatusTimes(
        status_since=newest.at if newest else None, down_since=stopped.at if stopped else None
    )


def _loads(run: Run, state: ShownState) -> RunLoads | None:
    """Only while it may still be true: for this attempt, and a run that reports."""
    if state in SILENT or state.is_terminal:
        return None
    loads = run_loads(run.run_id)
    return loads if loads is not None and loads.attempt == run.attempt else None
