"""The rows' facts about each pipeline's newest run, read once for one answer.

It never asks a driver. Unknown values are None: a run that has ended or is silent has no load, and
a restarting run has none of the attempt before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, OuterRef, Subquery

from ftdash.checkpoints.queries.checkpoints import waiting_since
from ftdash.checkpoints.queries.statistics import CheckpointMeasures, checkpoint_measures
from ftdash.flink_clusters.queries import ClusterBrief, ShownJob, clusters, listed_jobs
from ftdash.history.limits import ever
from ftdash.history.models import Counted
from ftdash.jobs.answers import Liveness, ShownState
from ftdash.jobs.models import (
    OPEN_PHASES,
    QuarantinedRecord,
    Recovery,
    Request,
    RestoreRefusal,
    Run,
    StatusChange,
    ZombieRefusal,
)
from ftdash.metrics.queries.loads import RunLoads, loads_of_each
from ftdash.runs.queries.freshness import observe, shown_state
from ftdash.runs.queries.pipelines import newest_runs
from ftdash.runs.queries.runs import records_to_replay_of_each
from ftdash.watching.queries import QueryBrief, watched
from ftdash.watching.queries.incidents import WatchedIncidentView, incidents
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
    watched_incidents: list[WatchedIncidentView]  # that are open
    flink_clusters: list[ClusterBrief]
    flink_jobs: dict[str, list[ShownJob]]  # by the name of the cluster: those that it lists
    query_savepoints: dict[str, int]  # by the name of the query: how many are kept


def observed() -> Observed:
    """Reads everything with the same few queries, however many pipelines there are."""
    seen, found = observe(), newest_runs()
    waiting = Request.objects.filter(phase__in=OPEN_PHASES).order_by().values_list("pipeline")
    open_requests = dict(waiting.annotate(Count("pk")))
    states = {pipeline.pk: shown_state(run, seen)[0] for pipeline, run in found}
    runs = _runs([run for _, run in found if run], states, seen.now)
    flink_clusters = clusters()
    return Observed(
        projector=seen.projector,
        reconcile=seen.reconcile,
        pipelines=[
            ObservedPipeline(
                name=pipeline.name,
                state=states[pipeline.pk],
                open_request_count=open_requests.get(pipeline.pk, 0),
                run=runs[run.pk] if run else None,
            )
            for pipeline, run in found
        ],
        now=seen.now,
        queries=watched(),
        watched_incidents=incidents(),
        flink_clusters=flink_clusters,
        flink_jobs=listed_jobs(flink_clusters),
        query_savepoints=kept_counts(),
    )


def _runs(
    found: list[Run], states: Mapping[int, ShownState], now: datetime
) -> dict[int, ObservedRun]:
    """Returns the runs by primary key; `states` are those of their pipelines."""
    keys = [run.pk for run in found]
    times, loads, recoveries = _times(keys), _loads(found, states), _recoveries(keys)
    checkpoints, waits = checkpoint_measures(keys), waiting_since(keys)
    zombies = ever(ZombieRefusal.objects.all(), Counted.REFUSED_ZOMBIE, keys)
    points = ever(RestoreRefusal.objects.all(), Counted.REFUSED_POINT, keys)
    quarantined, to_replay = _quarantined(keys), records_to_replay_of_each(found)
    return {
        run.pk: ObservedRun(
            pipeline=run.pipeline.name,
            run=run,
            state=states[run.pipeline_id],
            now=now,
            times=times[run.pk],
            checkpoints=checkpoints[run.pk],
            recovery=recoveries.get(run.pk),
            refused_zombie_count=zombies[run.pk],
            refused_point_count=points[run.pk],
            quarantined_count=quarantined.get(run.pk, 0),
            records_to_replay=to_replay[run.pk],
            commit_waits_since=waits.get(run.pk),
            loads=loads.get(run.pk),
        )
        for run in found
    }


def _times(runs: list[int]) -> dict[int, StatusTimes]:
    changes = StatusChange.objects.filter(run=OuterRef("pk"))
    newest = changes.order_by("-sequence")
    ran = newest.filter(status=JobStatus.RUNNING.value)
    after = changes.filter(sequence__gt=OuterRef("ran")).order_by("sequence")
    rows = Run.objects.filter(pk__in=runs).order_by()
    rows = rows.annotate(
        status_since=Subquery(newest.values("at")[:1]), ran=Subquery(ran.values("sequence")[:1])
    ).annotate(down_since=Subquery(after.values("at")[:1]))
    columns = rows.values_list("pk", "status_since", "down_since")
    return {pk: StatusTimes(since, down) for pk, since, down in columns}


def _recoveries(runs: list[int]) -> dict[int, Recovery]:
    newest = Recovery.objects.filter(run=OuterRef("pk")).order_by("-sequence").values("pk")[:1]
    keys = Run.objects.filter(pk__in=runs).order_by().values(newest=Subquery(newest))
    return {recovery.run_id: recovery for recovery in Recovery.objects.filter(pk__in=keys)}


def _quarantined(runs: list[int]) -> dict[int, int]:
    rows = QuarantinedRecord.objects.filter(run__in=runs).order_by().values("run_id")
    return dict(rows.annotate(count=Count("pk")).values_list("run_id", "count"))


def _loads(found: list[Run], states: Mapping[int, ShownState]) -> dict[int, RunLoads]:
    """Returns loads only while they may be true: of this attempt, and of a run that reports."""
    reporting = {
        run.pk: run.attempt
        for run in found
        if not ((state := states[run.pipeline_id]) in SILENT or state.is_terminal)
    }
    loads = loads_of_each(list(reporting))
    return {pk: each for pk, each in loads.items() if each.attempt == reporting[pk]}
