"""GET /metrics: the readings of every metric, in Prometheus' own format or in OpenMetrics.

It needs a token of any scope, or a session. Without either, the answer is one line of refusal, not
a redirect to the sign-in page. The Prometheus library gets one family after the other.

The readings that Flink's reporter would give end with their run, or while its state is unknown:
Flink removes the metrics of a job with the job. Our own readings are the two clocks, recoveries,
refusals, and our processes. The clocks of a silent run continue: for an alert, a checkpoint that
was not reported has not completed.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ftdash.accounts.authentication import Refused, caller_of
from ftdash.api.flink.names import job_id, task_manager_id, vertex_id, vertex_name
from ftdash.flink_clusters.queries import ClusterBrief, ClusterState, ShownJob
from ftdash.incidents.causes import OF_FLINK_JOBS, OF_QUERIES, Cause
from ftdash.jobs.answers import ShownState, VertexView
from ftdash.metrics.queries.loads import SubtaskLoad, UserMetric
from ftdash.prometheus.families import FAMILIES, Family, Reading
from ftdash.prometheus.observed import Observed, ObservedPipeline, ObservedRun, observed
from ftdash.runs.queries.freshness import to_running_ms
from ftdash.times import epoch_ms, watermark_moment
from ftdash.watching.queries import QueryBrief
from ftdash.watching.query_status import QueryState


class RowsCollector(Collector):
    """Collects one observation; lives for one answer."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterable[Metric]:
        found: dict[str, list[Reading]] = {}
        for reading in readings(self._observed):
            found.setdefault(reading.family.name, []).append(reading)
        for name, family in FAMILIES.items():
            if name in found:
                yield _written(family, found[name])


def readings(observed: Observed) -> Iterator[Reading]:
    yield from installation_readings(observed)
    for pipeline in observed.pipelines:
        yield from pipeline_readings(pipeline)
        if pipeline.run is not None:
            yield from flink_readings(pipeline.run)
    for query in observed.queries:
        yield from query_readings(query, observed.now)
        kept = observed.query_savepoints.get(query.name, 0)
        yield _reading("query_savepoints", {"query": query.name}, kept)
        of_query = {each.cause for each in observed.watched_incidents if each.query == query.name}
        for cause in sorted(OF_QUERIES):
            labels = {"query": query.name, "cause": cause.value}
            yield _reading("query_incident", labels, cause in of_query)
    for cluster in observed.flink_clusters:
        yield from cluster_readings(cluster, observed)


def _written(family: Family, readings: list[Reading]) -> Metric:
    kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for reading in readings:
        metric.add_metric([reading.labels[label] for label in family.labels], reading.value)
    return metric


@require_GET
@never_cache
@login_not_required
def metrics(request: HttpRequest) -> HttpResponse:
    try:
        caller_of(request)
    except Refused as refusal:
        return _refused(refusal)
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(RowsCollector(observed())), content_type)


def _refused(refusal: Refused) -> HttpResponse:
    text = f"{refusal}\n"
    answer = HttpResponse(text, "text/plain; charset=utf-8", refusal.status)
    if refusal.status == 401:
        answer["WWW-Authenticate"] = "Bearer"
    return answer


app_name = "prometheus"

urlpatterns = [path("metrics", metrics, name="metrics")]


MILLISECOND = timedelta(milliseconds=1)
NANOSECONDS_PER_MS = 1e6
_FILTERED = re.compile(r"[^a-zA-Z0-9:_]")
_STATE_TIMES = {
    "deployingTime": ShownState.INITIALIZING,
    "runningTime": ShownState.RUNNING,
    "restartingTime": ShownState.RESTARTING,
    "failingTime": ShownState.FAILING,
}
Values = dict[str, float | None]


def flink_readings(observed: ObservedRun) -> Iterator[Reading]:
    if not observed.is_live:
        return
    scope, labels = "flink_jobmanager_job_", _job_labels(observed)
    for values in (_checkpoint_values(observed), _status_values(observed)):
        yield from _readings(scope, labels, values)
    for load in observed.loads.subtasks if observed.loads else []:
        yield from _task_readings(observed, load)


def _checkpoint_values(observed: ObservedRun) -> Values:
    counts, newest = observed.checkpoints.counts, observed.checkpoints.newest
    values: Values = {
        "totalNumberOfCheckpoints": counts.total,
        "numberOfInProgressCheckpoints": counts.in_progress,
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
    }
    if newest is None:
        return values
    return values | {
        "lastCompletedCheckpointId": newest.checkpoint_id,
        "lastCheckpointCompletedTimestamp": _epoch_ms(newest.completed_at),
        "lastCheckpointDuration": newest.end_to_end_ms,
        "lastCheckpointSize": newest.uploaded_bytes,
        "lastCheckpointFullSize": newest.state_bytes,
        "lastCheckpointPersistedData": newest.persisted_bytes,
    }


def _status_values(observed: ObservedRun) -> Values:
    is_running = observed.state is ShownState.RUNNING
    in_status_ms = _ms_since(observed.times.status_since, observed.now)
    down_ms = _ms_since(observed.times.down_since, observed.now)
    recovery = observed.recovery
    return {
        "numRestarts": observed.run.restart_count,
        "lastCheckpointRestoreTimestamp": _epoch_ms(
            recovery.running_at if recovery and recovery.restored_path else None
        ),
        "uptime": in_status_ms if is_running else 0,
        "downtime": 0 if is_running else down_ms,
        **{
            name: in_status_ms if observed.state is state else 0
            for name, state in _STATE_TIMES.items()
        },
    }


def _task_readings(observed: ObservedRun, load: SubtaskLoad) -> Iterator[Reading]:
    labels = _task_labels(observed, load)
    vertex = _vertex(observed, load.vertex)
    watermark = watermark_moment(load.watermark_ms)
    scope = "flink_taskmanager_job_task_"
    yield from _readings(scope, labels, _load_values(load) | _alignment_values(observed, load))
    yield from _readings(
        f"{scope}Shuffle_Netty_Input_Buffers_", labels, {"inputQueueSize": load.queued_bytes}
    )
    if not vertex.is_source:  # a source makes watermarks, it does not read them
        yield from _readings(scope, labels, {"currentInputWatermark": _epoch_ms(watermark)})
        return
    operator = {"operator_id": vertex_id(vertex), "operator_name": filtered(load.vertex)}
    values: Values = {
        "currentOutputWatermark": _epoch_ms(watermark),
        "pendingRecords": load.pending_records,
    }
    yield from _readings(f"{scope}operator_", labels | operator, values)


def _load_values(load: SubtaskLoad) -> Values:
    return {
        "busyTimeMsPerSecond": 1000 * load.busy_ratio,
        "backPressuredTimeMsPerSecond": 1000 * load.backpressured_ratio,
        "idleTimeMsPerSecond": 1000 * load.idle_ratio,
        "accumulateBusyTimeMs": load.busy_ms,
        "accumulateBackPressuredTimeMs": load.backpressured_ms,
        "accumulateIdleTimeMs": load.idle_ms,
        "numRecordsIn": load.records_in,
        "numRecordsOut": load.records_out,
        "numRecordsInPerSecond": load.records_in_per_s,
        "numRecordsOutPerSecond": load.records_out_per_s,
        "numBytesIn": load.bytes_in,
        "numBytesOut": load.bytes_out,
        "numBytesInPerSecond": load.bytes_in_per_s,
        "numBytesOutPerSecond": load.bytes_out_per_s,
    }


def _alignment_values(observed: ObservedRun, load: SubtaskLoad) -> Values:
    newest = observed.checkpoints.newest
    share = newest.shares.get((load.vertex, load.subtask)) if newest else None
    if share is None:
        return {}
    return {
        "checkpointAlignmentTime": NANOSECONDS_PER_MS * share.alignment_ms,
        "checkpointStartDelayNanos": NANOSECONDS_PER_MS * share.start_delay_ms,
    }


def _job_labels(observed: ObservedRun) -> dict[str, str]:
    # No row says on which machine a driver runs.
    name, run_id = filtered(observed.pipeline), observed.run.run_id
    return {"host": "", "job_id": job_id(run_id), "job_name": name}


def _task_labels(observed: ObservedRun, load: SubtaskLoad) -> dict[str, str]:
    """A slot hosts the subtask with its number of every vertex. Flink counts attempts from 0."""
    run, attempt = observed.run, max(0, observed.run.attempt - 1)
    slot = run.slots.get(str(load.subtask), {})
    vertex = _vertex(observed, load.vertex)
    job, task = job_id(run.run_id), vertex_id(vertex)
    return _job_labels(observed) | {
        "host": filtered(slot.get("host", "")),
        "subtask_index": str(load.subtask),
        "task_attempt_id": f"{job}_{task}_{load.subtask}_{attempt}",
        "task_attempt_num": str(attempt),
        "task_id": task,
        "task_name": filtered(vertex_name(vertex)),
        "tm_id": filtered(task_manager_id(run.run_id, load.subtask)),
    }


def _vertex(observed: ObservedRun, uid: str) -> VertexView:
    """A vertex that the run has not named counts as a single operator with that uid."""
    found = [VertexView(**vertex) for vertex in observed.run.vertices if vertex["uid"] == uid]
    return found[0] if found else VertexView(uid, [uid], [], is_source=False, is_sink=False)


def _readings(scope: str, labels: dict[str, str], values: Values) -> Iterator[Reading]:
    for name, value in values.items():
        if value is not None:
            yield Reading(FAMILIES[scope + name], labels, value)


def filtered(value: str) -> str:
    """Filters a label's value as Flink's reporter does by default."""
    return _FILTERED.sub("_", value)


def _epoch_ms(at: datetime | None) -> float | None:
    return None if at is None else epoch_ms(at)


def _ms_since(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else max(0.0, (now - at) / MILLISECOND)


MS_PER_S = 1000.0
FLINK_STATES = (
    *("INITIALIZING", "CREATED", "RUNNING", "FAILING", "FAILED", "CANCELLING", "CANCELED"),
    *("FINISHED", "RESTARTING", "SUSPENDED", "RECONCILING", "STALE"),
)
"""Flink's JobStatus, and ours for a job of a cluster that does not answer."""

Labels = dict[str, str]


def installation_readings(observed: Observed) -> Iterator[Reading]:
    yield _reading("process_up", {"process": "projector"}, observed.projector.is_alive)
    yield _reading("process_up", {"process": "reconcile"}, observed.reconcile.is_alive)


def pipeline_readings(pipeline: ObservedPipeline) -> Iterator[Reading]:
    labels = {"pipeline": pipeline.name}
    yield _reading("open_requests", labels, pipeline.open_request_count)
    for state in ShownState:
        is_in_it = pipeline.state is state
        yield _reading("pipeline_state", labels | {"state": state.value}, is_in_it)
    if pipeline.run is not None:
        yield from _run_readings(pipeline.run)


def query_readings(query: QueryBrief, now: datetime) -> Iterator[Reading]:
    """Serves rates while the query runs; its clocks continue when it has fallen silent."""
    labels = {"query": query.name}
    for state in QueryState:
        yield _reading("query_state", labels | {"state": state.value}, query.state is state)
    if query.state not in (QueryState.FINISHED, QueryState.FAILED):
        clocks = {
            "query_since_committed_batch_seconds": _seconds(query.last_committed_at, now),
            "query_since_data_seconds": _seconds(query.data_moved_at, now),
        }
        yield from _known(labels, clocks)
    if query.state in (QueryState.RUNNING, QueryState.IDLE):
        took_ms = query.duration_ms
        newest = {
            "query_batch_seconds": None if took_ms is None else took_ms / 1000,
            "query_input_rows_per_second": query.input_rows_per_s,
            "query_processed_rows_per_second": query.processed_rows_per_s,
        }
        yield from _known(labels, newest)
    yield _reading("query_restarts_total", labels, query.restart_count)
    yield _reading("query_dropped_events_total", labels, query.dropped_events)
    yield _reading("query_checkpoint_errors", labels, query.damage_count)


def cluster_readings(cluster: ClusterBrief, observed: Observed) -> Iterator[Reading]:
    """Yields readings of the jobs that it lists, and the open incidents of the other jobs."""
    name, jobs = cluster.name, observed.flink_jobs.get(cluster.name, [])
    is_up = cluster.state is ClusterState.RUNNING
    yield _reading("flink_cluster_up", {"cluster": name}, is_up)
    heard = {"flink_cluster_since_heard_seconds": _seconds(cluster.heard_at, observed.now)}
    yield from _known({"cluster": name}, heard)
    for job in jobs:
        yield from _flink_job_readings(_flink_labels(name, job.jid, job.name), job, observed.now)
    found = {("", "", Cause.FLINK_SILENT): False}
    found |= {(job.jid, job.name, cause): False for job in jobs for cause in OF_FLINK_JOBS}
    for each in observed.watched_incidents:
        if each.flink_cluster == name:
            found[each.flink_job or "", each.flink_job_name, each.cause] = True
    for (jid, job_name, cause), is_open in sorted(found.items()):
        labels = _flink_labels(name, jid, job_name) | {"cause": cause.value}
        yield _reading("flink_incident", labels, is_open)


def _flink_job_readings(labels: dict[str, str], job: ShownJob, now: datetime) -> Iterator[Reading]:
    for state in FLINK_STATES:
        yield _reading("flink_job_state", labels | {"state": state}, job.shown_state == state)
    took_ms = job.last_duration_ms
    values = {
        "flink_job_last_checkpoint_seconds": None if took_ms is None else took_ms / MS_PER_S,
        "flink_job_last_checkpoint_state_bytes": job.last_state_bytes,
        "flink_job_restarts_total": job.restart_count,
        "flink_job_failed_checkpoints_total": job.counts.failed,
    }
    if not job.is_over:
        since = _seconds(job.last_completed_at, now)
        values["flink_job_since_completed_checkpoint_seconds"] = since
    yield from _known(labels, values)


def _flink_labels(cluster: str, jid: str = "", name: str = "") -> dict[str, str]:
    return {"cluster": cluster, "job_id": jid, "job_name": filtered(name)}


def _run_readings(observed: ObservedRun) -> Iterator[Reading]:
    labels = {"pipeline": observed.pipeline, "run": observed.run.run_id}
    yield from _known(labels, _clocks(observed))
    yield from _known(labels, _last_checkpoint(observed))
    yield _reading("refused_zombies_total", labels, observed.refused_zombie_count)
    yield _reading("refused_points_total", labels, observed.refused_point_count)
    yield _reading("quarantined_records_total", labels, observed.quarantined_count)
    for reason, count in sorted(observed.checkpoints.failures.items()):
        yield _reading("checkpoint_failures_total", labels | {"reason": reason}, count)
    yield from _recovery(labels, observed)
    if observed.is_live:
        yield from _load(labels, observed)


def _clocks(observed: ObservedRun) -> dict[str, float | None]:
    if observed.state.is_terminal:
        return {}  # nothing more will come
    run, now = observed.run, observed.now
    return {
        "report_age_seconds": _seconds(run.last_event_at, now),
        "since_completed_checkpoint_seconds": _seconds(run.last_completed_at, now),
        "since_committed_output_seconds": _seconds(run.last_committed_at, now),
        "commit_wait_seconds": _seconds(observed.commit_waits_since or now, now),
        "records_to_replay": observed.records_to_replay,
    }


def _last_checkpoint(observed: ObservedRun) -> dict[str, float | None]:
    newest = observed.checkpoints.newest
    return {
        "last_checkpoint_buffered_records": newest.buffered_records if newest else None,
        "last_checkpoint_buffered_bytes": newest.buffered_bytes if newest else None,
    }


def _recovery(labels: Labels, observed: ObservedRun) -> Iterator[Reading]:
    recovery = observed.recovery
    if recovery is None:
        return
    for phase in recovery.phases:
        seconds = phase["duration_ms"] / MS_PER_S
        yield _reading("last_recovery_phase_seconds", labels | {"phase": phase["phase"]}, seconds)
    took_ms = to_running_ms(recovery.running_at, recovery.phases)
    if took_ms is not None:
        yield _reading("last_recovery_seconds", labels, took_ms / MS_PER_S)


def _load(labels: Labels, observed: ObservedRun) -> Iterator[Reading]:
    for name, count in observed.run.counters.items():
        operator, _, counter = name.rpartition(".")
        whose = {"operator": operator, "counter": counter}
        yield _reading("operator_count", labels | whose, count)
    if observed.loads is None:
        return
    yield _reading("records_read_per_second", labels, observed.run.records_per_s)
    for slot, resident_bytes in observed.loads.resident_bytes.items():
        yield _reading("slot_resident_bytes", labels | {"slot": str(slot)}, resident_bytes)
    for load in observed.loads.subtasks:
        whose = {"operator": load.vertex, "subtask": str(load.subtask)}
        yield _reading("queued_records", labels | whose, load.queued_records)
        yield _reading("state_bytes", labels | whose, load.state_bytes)
        for metric in load.metrics:
            yield from _user_metric(labels | {"subtask": str(load.subtask)}, metric)


def _user_metric(labels: Labels, metric: UserMetric) -> Iterator[Reading]:
    """`OperatorMetrics` bounds how many an operator has, so that labels cannot grow without end."""
    own = labels | {"operator": metric.operator, "name": metric.name}
    family = "user_histogram_count" if metric.kind == "histogram" else f"user_{metric.kind}"
    yield from _known(own, {family: metric.value})
    statistics = {
        "min": metric.least,
        "max": metric.most,
        "mean": metric.mean,
        "p50": metric.p50,
        "p95": metric.p95,
        "p99": metric.p99,
    }
    for statistic, value in statistics.items():
        yield from _known(own | {"statistic": statistic}, {"user_histogram": value})


def _known(labels: Labels, values: dict[str, float | None]) -> Iterator[Reading]:
    for name, value in values.items():
        if value is not None:
            yield _reading(name, labels, value)


def _reading(name: str, labels: Labels, value: float) -> Reading:
    return Reading(FAMILIES[f"ftdash_{name}"], labels, value)


def _seconds(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else max(0.0, (now - since).total_seconds())
