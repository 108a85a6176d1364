"""Reads the incidents of everything that is watched, each with its next step."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet
from django.urls import reverse

from ftdash.incidents.causes import ADVICE, Cause
from ftdash.watching.models import WatchedIncident

INCIDENTS_MAX = 50
PARTS = ("query", "flink_cluster", "flink_job__cluster")
"""Rows that are read along with an incident, so that it knows its subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedIncidentView:
    """An incident is open while `closed_at` is None. Times are UTC.

    It belongs to a query, to a Flink cluster, or to a job of that cluster, by its id in Flink.
    """

    key: int
    query: str | None
    flink_cluster: str | None
    flink_job: str | None
    kind: str  # of the subject, in words
    flink_job_name: str  # empty: it is of no job
    subject: str
    path: str  # of its subject's page
    cause: Cause
    title: str
    text: str
    next_step: str
    opened_at: datetime
    last_at: datetime
    closed_at: datetime | None


def incidents(name: str | None = None, *, with_closed: bool = False) -> list[WatchedIncidentView]:
    """Returns incidents of one query, or of all; open ones first, each group newest first."""
    return _views(Q() if name is None else Q(query__name=name), with_closed=with_closed)


def of_flink(
    name: str, jid: str | None = None, *, with_closed: bool = False
) -> list[WatchedIncidentView]:
    """Returns the incidents of a cluster and all its jobs, or of one job."""
    its_job = Q(flink_job__cluster__name=name)
    if jid is not None:
        return _views(its_job & Q(flink_job__jid=jid), with_closed=with_closed)
    return _views(its_job | Q(flink_cluster__name=name), with_closed=with_closed)


def _rows() -> QuerySet[WatchedIncident]:
    return WatchedIncident.objects.filter(query__removed_at=None).select_related(*PARTS)


def _views(mine: Q, *, with_closed: bool) -> list[WatchedIncidentView]:
    rows = _rows().filter(mine)
    found = [*rows.filter(closed_at=None)[:INCIDENTS_MAX]]
    if with_closed:
        found += rows.exclude(closed_at=None)[:INCIDENTS_MAX]
    return [_view(row) for row in found]


def _view(row: WatchedIncident) -> WatchedIncidentView:
    cause, job = Cause(row.cause), row.flink_job
    cluster = job.cluster if job is not None else row.flink_cluster
    page, place = row.page
    return WatchedIncidentView(
        key=row.pk,
        query=row.query.name if row.query is not None else None,
        flink_cluster=cluster.name if cluster is not None else None,
        flink_job=job.jid if job is not None else None,
        kind=row.subject_kind,
        flink_job_name=job.name if job is not None else "",
        subject=row.subject,
        path=reverse(page, args=place),
        cause=cause,
        title=ADVICE[cause].title,
        text=row.text,
        next_step=ADVICE[cause].step,
        opened_at=row.opened_at,
        last_at=row.last_at,
        closed_at=row.closed_at,
    )
