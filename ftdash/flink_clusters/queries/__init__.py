"""Reads watched Flink clusters: the fleet, one cluster, one of its jobs, one checkpoint."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from ftdash.checkpoints.answers import (
    AlignmentTimeline,
    CheckpointRow,
    SubtaskTimeline,
    slowest_of,
)
from ftdash.checkpoints.models import CheckpointStatus
from ftdash.checkpoints.queries.completed_history import CompletedHistory, FailedPoint, Trend
from ftdash.flink_clusters.bodies import Counts, Pressure, SubtaskPart, Vertex
from ftdash.flink_clusters.models import (
    FlinkAction,
    FlinkActionKind,
    FlinkActionState,
    FlinkCheckpoint,
    FlinkCheckpointStatus,
    FlinkCluster,
    FlinkEvent,
    FlinkEventKind,
    FlinkJob,
)
from ftdash.flink_clusters.politeness import SILENT_AFTER, is_over

TREND_MAX = 20_000
EVENTS_MAX = 30
POINTS_MAX = 50
ACTIONS_MAX = 20


class ClusterState(StrEnum):
    """The states of a cluster, in words that pages already use for runs."""

    RUNNING = "RUNNING"
    STALE = "STALE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBrief:
    """One cluster as the fleet shows it, never with the header's value. None: not known yet."""

    name: str
    address: str
    has_header: bool
    flink_version: str
    state: ClusterState
    heard_at: datetime | None
    problem: str
    next_look_at: datetime
    created_by: str
    created_at: datetime
    running_count: int
    troubled_count: int  # jobs that fail or restart, as far as it answers
    job_count: int  # including jobs that it has forgotten

    @property
    def needs_attention(self) -> bool:
        return self.state is not ClusterState.RUNNING or self.troubled_count > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBrief:
    """`state` as Flink said it last; `shown_state` is STALE if that may be wrong by now.

    `kept_count`: its checkpoints in this dashboard. Times are UTC.
    """

    jid: str
    name: str
    state: str
    shown_state: str
    started_at: datetime
    ended_at: datetime | None
    listed_at: datetime
    forgotten_at: datetime | None
    restart_count: int | None
    kept_count: int
    last_completed_at: datetime | None
    last_duration_ms: int | None
    last_state_bytes: int | None

    @property
    def is_over(self) -> bool:
        return is_over(self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob(JobBrief):
    """A job as pages and metrics show it."""

    counts: Counts
    takes_checkpoints: bool | None
    worst_pressure: Pressure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBrief:
    """`is_discarded` and `external_path` as Flink said at `said_at`. Times are UTC."""

    checkpoint_id: int
    status: str
    kind: str  # in words
    is_savepoint: bool
    savepoint_format: str
    triggered_at: datetime
    ended_at: datetime | None
    duration_ms: int | None
    alignment_ms: int | None
    state_bytes: int | None
    uploaded_bytes: int | None
    processed_bytes: int | None
    persisted_bytes: int | None
    acknowledged_count: int
    subtask_count: int
    external_path: str
    is_discarded: bool
    failure: str
    said_at: datetime


@dataclass(frozen=True, slots=True)
class EventView:
    key: int
    kind: FlinkEventKind
    at: datetime
    title: str
    text: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    key: int
    kind: FlinkActionKind
    state: FlinkActionState
    requester: str
    reason: str
    created_at: datetime
    ended_at: datetime | None
    sent_count: int
    trigger_id: str
    location: str
    checkpoint_id: int | None
    note: str
    problem: str


@dataclass(frozen=True, slots=True)
class CheckpointPage:
    rows: list[CheckpointBrief]  # newest first
    page: int
    pages: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    cluster: ClusterBrief
    job: ShownJob
    now: datetime
    checkpoints: CheckpointPage
    trend: Trend
    events: list[EventView]  # newest first
    points: list[CheckpointBrief]  # savepoints, and checkpoints whose files are there; newest first
    point_count: int
    actions: list[ActionView]
    pressure: list[Pressure]
    pressure_at: datetime | None
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDetail:
    cluster: ClusterBrief
    job: ShownJob
    found: CheckpointBrief
    has_subtasks: bool | None
    timeline: AlignmentTimeline
    parts: list[tuple[str, list[SubtaskPart]]]  # by operator, in the order of the job
    earlier_id: int | None
    later_id: int | None


def clusters() -> list[ClusterBrief]:
    """Returns those that need attention first, then the others by name."""
    found = [_cluster(row, timezone.now()) for row in _cluster_rows()]
    return sorted(found, key=lambda each: (not each.needs_attention, each.name))


def cluster(name: str) -> ClusterBrief | None:
    row = _cluster_rows().filter(name=name).first()
    return None if row is None else _cluster(row, timezone.now())


def versions() -> dict[str, str]:
    """Returns a token per cluster that changes with its pages, for the event stream. Cheap."""
    rows = FlinkCluster.objects.values_list("name", "version")
    return {resource(name): str(version) for name, version in rows}


def resource(name: str) -> str:
    """Returns the cluster's name in the event stream; no pipeline can have such a name."""
    return f"flink/{name}"


def jobs(name: str) -> list[ShownJob]:
    """Returns the jobs of one cluster: those that continue first, then the newest first."""
    found = cluster(name)
    if found is None:
        return []
    rows = [_job(row, found) for row in _job_rows().filter(cluster__name=name)]
    return sorted(rows, key=lambda each: each.is_over or each.forgotten_at is not None)


def listed_jobs(known: Iterable[ClusterBrief]) -> dict[str, list[ShownJob]]:
    """Returns {cluster: the jobs that it listed last}, with one query for all clusters."""
    briefs = {each.name: each for each in known}
    found: dict[str, list[ShownJob]] = {name: [] for name in briefs}
    for row in _job_rows().filter(forgotten_at=None, cluster__name__in=briefs):
        name = row.cluster.name
        found[name].append(_job(row, briefs[name]))
    return found


def job(name: str, jid: str) -> ShownJob | None:
    found = cluster(name)
    row = _job_rows().filter(cluster__name=name, jid=jid).first()
    return None if found is None or row is None else _job(row, found)


def job_detail(name: str, jid: str, *, page: int, per_page: int) -> JobDetail | None:
    found = cluster(name)
    row = _job_rows().filter(cluster__name=name, jid=jid).first()
    if found is None or row is None:
        return None
    points = _points(row)
    return JobDetail(
        cluster=found,
        job=_job(row, found),
        now=timezone.now(),
        checkpoints=_page(row, page, per_page),
        trend=_trend(row),
        events=[_event(each) for each in FlinkEvent.objects.filter(job=row)[:EVENTS_MAX]],
        points=[brief_of(each) for each in points[:POINTS_MAX]],
        point_count=points.count(),
        actions=actions(name, jid),
        pressure=msgspec.convert(row.pressure, list[Pressure]),
        pressure_at=row.pressure_at,
        settings=row.settings,
    )


def checkpoints(name: str, jid: str, *, page: int, per_page: int) -> CheckpointPage:
    """Returns checkpoints newest first. A page number beyond the last gives the last page."""
    row = FlinkJob.objects.filter(cluster__name=name, jid=jid).first()
    return CheckpointPage([], 1, 1, 0) if row is None else _page(row, page, per_page)


def points(name: str, jid: str) -> list[CheckpointBrief]:
    """Returns savepoints, and checkpoints whose files are there as far as Flink has said."""
    row = FlinkJob.objects.filter(cluster__name=name, jid=jid).first()
    return [] if row is None else [brief_of(each) for each in _points(row)[:POINTS_MAX]]


def checkpoint(name: str, jid: str, checkpoint_id: int) -> CheckpointDetail | None:
    found, its_job = cluster(name), job(name, jid)
    rows = FlinkCheckpoint.objects.filter(job__cluster__name=name, job__jid=jid)
    row = rows.filter(checkpoint_id=checkpoint_id).select_related("job").first()
    if found is None or its_job is None or row is None:
        return None
    ids = rows.order_by("checkpoint_id").values_list("checkpoint_id", flat=True)
    vertices = msgspec.convert(row.job.vertices, list[Vertex])
    parts = msgspec.convert(row.subtasks, list[SubtaskPart])
    return CheckpointDetail(
        cluster=found,
        job=its_job,
        found=brief_of(row),
        has_subtasks=row.has_subtasks,
        timeline=_timeline(row, vertices, parts),
        parts=[
            (shown, [part for part in parts if part.vertex == key])
            for key, shown in names_of(vertices).items()
        ],
        earlier_id=ids.filter(checkpoint_id__lt=checkpoint_id).last(),
        later_id=ids.filter(checkpoint_id__gt=checkpoint_id).first(),
    )


def actions(name: str, jid: str) -> list[ActionView]:
    """Returns the newest actions on a job, newest first."""
    rows = FlinkAction.objects.filter(job__cluster__name=name, job__jid=jid)
    return [_action(row) for row in rows[:ACTIONS_MAX]]


def action(name: str, key: int) -> ActionView | None:
    row = FlinkAction.objects.filter(job__cluster__name=name, pk=key).first()
    return None if row is None else _action(row)


VERTEX_NAME_MAX = 40


def names_of(vertices: Iterable[Vertex]) -> dict[str, str]:
    """Returns {id: name for a chart}.

    Flink joins the names of all chained operators. So a long name is cut off, and each further
    equal one gets its number.
    """
    names: dict[str, str] = {}
    for each in vertices:
        long = len(each.name) > VERTEX_NAME_MAX
        name = f"{each.name[: VERTEX_NAME_MAX - 1]}…" if long else each.name
        same = sum(known.partition(" #")[0] == name for known in names.values())
        names[each.id] = f"{name} #{same + 1}" if same else name
    return names


def _cluster_rows() -> QuerySet[FlinkCluster, Any]:
    listed = Q(jobs__forgotten_at=None)
    return FlinkCluster.objects.annotate(
        running=Count("jobs", filter=listed & Q(jobs__state="RUNNING")),
        troubled=Count("jobs", filter=listed & Q(jobs__state__in=("FAILING", "RESTARTING"))),
        all_jobs=Count("jobs"),
    ).order_by("name")


def _cluster(row: Any, now: datetime) -> ClusterBrief:
    """`row` is one of `_cluster_rows`, with its annotations."""
    state = ClusterState.RUNNING
    if row.heard_at is None:
        state = ClusterState.UNKNOWN
    elif row.problem or now - row.heard_at > SILENT_AFTER:
        state = ClusterState.STALE
    return ClusterBrief(
        name=row.name,
        address=row.address,
        has_header=bool(row.header_name),
        flink_version=row.flink_version,
        state=state,
        heard_at=row.heard_at,
        problem=row.problem,
        next_look_at=row.due_at,
        created_by=row.created_by,
        created_at=row.created_at,
        running_count=row.running,
        troubled_count=row.troubled,
        job_count=row.all_jobs,
    )


def _job_rows() -> QuerySet[FlinkJob, Any]:
    completed = FlinkCheckpoint.objects.filter(
        job=OuterRef("pk"), status=FlinkCheckpointStatus.COMPLETED
    ).order_by("-checkpoint_id")
    return (
        FlinkJob.objects.select_related("cluster")
        .annotate(
            kept=Count("checkpoints"),
            last_at=Subquery(completed.values("ended_at")[:1]),
            last_ms=Subquery(completed.values("duration_ms")[:1]),
            last_bytes=Subquery(completed.values("state_bytes")[:1]),
        )
        .order_by("-started_at", "-pk")
    )


def _job(row: Any, its_cluster: ClusterBrief) -> ShownJob:
    """`row` is one of `_job_rows`, with its annotations."""
    is_silent = its_cluster.state is not ClusterState.RUNNING or row.forgotten_at is not None
    pressure = msgspec.convert(row.pressure, list[Pressure])
    return ShownJob(
        jid=row.jid,
        name=row.name,
        state=row.state,
        shown_state="STALE" if is_silent and not is_over(row.state) else row.state,
        started_at=row.started_at,
        ended_at=row.ended_at,
        listed_at=row.listed_at,
        forgotten_at=row.forgotten_at,
        restart_count=row.restart_count,
        counts=msgspec.convert(row.counts, Counts),
        kept_count=row.kept,
        last_completed_at=row.last_at,
        last_duration_ms=row.last_ms,
        last_state_bytes=row.last_bytes,
        takes_checkpoints=row.takes_checkpoints,
        worst_pressure=max(pressure, key=lambda each: each.ratio, default=None),
    )


def _points(row: FlinkJob) -> QuerySet[FlinkCheckpoint]:
    kept = Q(is_savepoint=True) | Q(is_discarded=False)
    found = FlinkCheckpoint.objects.filter(kept, job=row).exclude(external_path="")
    return found.filter(status=FlinkCheckpointStatus.COMPLETED)


def _page(row: FlinkJob, page: int, per_page: int) -> CheckpointPage:
    rows = FlinkCheckpoint.objects.filter(job=row).defer("subtasks")
    count = rows.count()
    pages = max(1, -(-count // per_page))
    page = min(page, pages)
    found = rows[(page - 1) * per_page : page * per_page]
    return CheckpointPage([brief_of(each) for each in found], page, pages, count)


def _trend(row: FlinkJob) -> Trend:
    """Returns the newest checkpoints, oldest first, in the column order of `CompletedHistory`."""
    rows = FlinkCheckpoint.objects.filter(job=row)
    completed = rows.filter(status=FlinkCheckpointStatus.COMPLETED).values_list(
        *("checkpoint_id", "triggered_at", "duration_ms", "alignment_ms", "state_bytes"),
        *("uploaded_bytes", "processed_bytes", "persisted_bytes"),
    )
    failed = rows.filter(status=FlinkCheckpointStatus.FAILED).values_list(
        "checkpoint_id", "triggered_at", "duration_ms"
    )
    return Trend(
        completed=CompletedHistory.of(list(completed[:TREND_MAX])[::-1]),
        failed=[
            FailedPoint(number, at, float(took or 0)) for number, at, took in failed[:TREND_MAX]
        ][::-1],
    )


_KINDS = {
    "CHECKPOINT": "aligned checkpoint",
    "UNALIGNED_CHECKPOINT": "unaligned checkpoint",
    "SAVEPOINT": "savepoint",
    "SYNC_SAVEPOINT": "savepoint to stop with",
}


def brief_of(row: FlinkCheckpoint) -> CheckpointBrief:
    plain = "savepoint" if row.is_savepoint else "checkpoint"
    return CheckpointBrief(
        checkpoint_id=row.checkpoint_id,
        status=row.status,
        kind=_KINDS.get(row.checkpoint_type, plain),
        is_savepoint=row.is_savepoint,
        savepoint_format=row.savepoint_format,
        triggered_at=row.triggered_at,
        ended_at=row.ended_at,
        duration_ms=row.duration_ms,
        alignment_ms=row.alignment_ms,
        state_bytes=row.state_bytes,
        uploaded_bytes=row.uploaded_bytes,
        processed_bytes=row.processed_bytes,
        persisted_bytes=row.persisted_bytes,
        acknowledged_count=row.acknowledged_count,
        subtask_count=row.subtask_count,
        external_path=row.external_path,
        is_discarded=row.is_discarded,
        failure=row.failure,
        said_at=row.said_at,
    )


def _timeline(
    row: FlinkCheckpoint, vertices: Iterable[Vertex], parts: Iterable[SubtaskPart]
) -> AlignmentTimeline:
    """Like the timeline of our own checkpoints, without channels: Flink measures whole subtasks."""
    names = names_of(vertices)
    order = {key: index for index, key in enumerate(names)}
    known = sorted(
        (each for each in parts if each.vertex in names),
        key=lambda each: (order[each.vertex], each.index),
    )
    subtasks = [
        SubtaskTimeline(
            vertex=names[each.vertex],
            subtask=each.index,
            start_delay_ms=each.start_delay_ms,
            alignment_ms=each.alignment_ms,
            sync_ms=each.sync_ms,
            async_ms=each.async_ms,
            acknowledged_ms=each.acknowledged_ms,
            state_bytes=each.state_bytes,
            uploaded_bytes=each.uploaded_bytes,
            channels=(),
            persisted_bytes=each.persisted_bytes,
            is_unaligned=each.is_unaligned,
        )
        for each in known
    ]
    return AlignmentTimeline(_row(row), subtasks, slowest_of(subtasks))


def _row(row: FlinkCheckpoint) -> CheckpointRow:
    is_completed = row.status == FlinkCheckpointStatus.COMPLETED
    is_failed = row.status == FlinkCheckpointStatus.FAILED
    return CheckpointRow(
        run_id=row.job.jid,
        checkpoint_id=row.checkpoint_id,
        attempt=0,
        kind="SAVEPOINT" if row.is_savepoint else "CHECKPOINT",
        status=CheckpointStatus(row.status),
        trigger_at=row.triggered_at,
        completed_at=row.ended_at if is_completed else None,
        failed_at=row.ended_at if is_failed else None,
        committed_at=None,
        end_to_end_ms=row.duration_ms if is_completed else None,
        state_bytes=row.state_bytes,
        uploaded_bytes=row.uploaded_bytes,
        buffered_records=None,
        buffered_bytes=None,
        persisted_bytes=row.persisted_bytes,
        alignment_ms=row.alignment_ms,
        source_records=None,
        acknowledged_count=row.acknowledged_count,
        subtask_count=row.subtask_count,
        reason_name="FAILED" if is_failed else "",
        reason_text=row.failure or ("Flink gave no reason" if is_failed else ""),
        message="",
        path=row.external_path or None,
        watermark_at=None,
        counters={},
        request_id=None,
    )


def _event(row: FlinkEvent) -> EventView:
    return EventView(row.pk, FlinkEventKind(row.kind), row.at, row.title, row.text, row.place)


def _action(row: FlinkAction) -> ActionView:
    return ActionView(
        key=row.pk,
        kind=FlinkActionKind(row.kind),
        state=FlinkActionState(row.state),
        requester=row.requester,
        reason=row.reason,
        created_at=row.created_at,
        ended_at=row.ended_at,
        sent_count=row.sent_count,
        trigger_id=row.trigger_id,
        location=row.location,
        checkpoint_id=row.checkpoint_id,
        note=row.note,
        problem=row.problem,
    )
