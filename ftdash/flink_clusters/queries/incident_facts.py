"""Reads the facts that the judge of incidents needs, by the keys of clusters and of their jobs."""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from itertools import takewhile

from django.db.models import Exists, OuterRef, Q, QuerySet

from ftdash.flink_clusters.incident_signs import (
    GONE_FOR,
    MILLISECOND,
    RESTARTS_WITHIN,
    ClusterSeen,
    JobSeen,
)
from ftdash.flink_clusters.models import (
    FlinkCheckpoint,
    FlinkCheckpointStatus,
    FlinkCluster,
    FlinkEvent,
    FlinkEventKind,
    FlinkJob,
)
from ftdash.flink_clusters.politeness import SILENT_AFTER

CHECKPOINTS_SEEN = 50
INTERVAL_MAX_MS = timedelta(days=365) // MILLISECOND
"""For a job that takes no checkpoints by itself, Flink answers the greatest possible number."""


def seen_clusters(now: datetime) -> Iterator[tuple[int, ClusterSeen]]:
    for row in FlinkCluster.objects.all():
        yield row.pk, ClusterSeen(now=now, heard_at=row.heard_at, problem=row.problem)


def seen_jobs(now: datetime, also: Collection[int]) -> Iterator[tuple[int, JobSeen]]:
    """Yields the jobs of clusters that answer, by their keys.

    Nothing is known about the jobs of other clusters, so their incidents stay as they are. `also`
    are jobs that have incidents, no matter how long they are gone.
    """
    later = FlinkJob.objects.filter(
        cluster=OuterRef("cluster"), name=OuterRef("name"), started_at__gt=OuterRef("started_at")
    )
    is_recent = Q(forgotten_at=None) | Q(forgotten_at__gte=now - GONE_FOR)
    rows = FlinkJob.objects.filter(
        is_recent | Q(pk__in=also), cluster__problem="", cluster__heard_at__gte=now - SILENT_AFTER
    )
    for row in rows.annotate(is_replaced=Exists(later)):
        yield row.pk, _job_seen(row, row.is_replaced, now)


def _job_seen(row: FlinkJob, is_replaced: bool, now: datetime) -> JobSeen:
    exceptions = FlinkEvent.objects.filter(job=row, kind=FlinkEventKind.EXCEPTION)
    newest = exceptions.first()
    rows = FlinkCheckpoint.objects.filter(job=row).defer("subtasks")
    checkpoints = rows.filter(is_savepoint=False)
    ended = checkpoints.exclude(status=FlinkCheckpointStatus.IN_PROGRESS)
    return JobSeen(
        now=now,
        state=row.state,
        started_at=row.started_at,
        forgotten_at=row.forgotten_at,
        is_replaced=is_replaced,
        exception=_words(newest) if newest else "",
        exception_count=exceptions.filter(at__gt=now - RESTARTS_WITHIN).count(),
        interval_ms=_interval_ms(row),
        completed_at=_newest_completed(rows).values_list("ended_at", flat=True).first(),
        durations_ms=[
            float(took)
            for took in _newest_completed(checkpoints).values_list("duration_ms", flat=True)[
                :CHECKPOINTS_SEEN
            ]
            if took is not None
        ][::-1],
        under_way_ms=_under_way_ms(checkpoints, now),
        failures_in_a_row=[
            each.failure
            for each in takewhile(
                lambda each: each.status == FlinkCheckpointStatus.FAILED, ended[:CHECKPOINTS_SEEN]
            )
        ],
    )


def _newest_completed(rows: QuerySet[FlinkCheckpoint]) -> QuerySet[FlinkCheckpoint]:
    return rows.filter(status=FlinkCheckpointStatus.COMPLETED).order_by("-checkpoint_id")


def _under_way_ms(rows: QuerySet[FlinkCheckpoint], now: datetime) -> float | None:
    """Considers the newest only: an older one may have ended while the cluster was not asked."""
    newest = rows.first()
    if newest is None or newest.status != FlinkCheckpointStatus.IN_PROGRESS:
        return None
    return (now - newest.triggered_at) / MILLISECOND


def _words(event: FlinkEvent) -> str:
    """Returns the first line of the exception, with its message, and where it happened."""
    first = event.text.strip().partition("\n")[0] or event.title
    return f"{first} In {event.place}." if event.place else first


def _interval_ms(row: FlinkJob) -> int | None:
    interval = row.settings.get("interval")
    if row.takes_checkpoints is False or not isinstance(interval, int):
        return None
    return interval if 0 < interval < INTERVAL_MAX_MS else None
