"""Opens and closes the incidents of everything that is watched, from rows alone.

It treats queries, Flink clusters and their jobs in the same way. A worker judges every few seconds.
Every round starts from the rows, so two rounds at once or a worker that dies in between change
nothing. An incident is over when its sign has been gone for as long as the machine of incidents
says.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import IntegrityError, transaction

from ftdash.errands import isolated
from ftdash.flink_clusters.incident_signs import cluster_signs, job_signs
from ftdash.flink_clusters.queries.incident_facts import seen_clusters, seen_jobs
from ftdash.flink_clusters.services import keeping
from ftdash.incidents.causes import Cause
from ftdash.incidents.machine import Health, Open, Sign, judge
from ftdash.watching import queries
from ftdash.watching.incident_signs import signs
from ftdash.watching.models import WatchedIncident
from ftdash.watching.queries.incidents import PARTS
from ftdash.watching.services import work


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of an incident: the column of its row, and the key there."""

    column: str
    key: int

    @classmethod
    def of(cls, row: WatchedIncident) -> "Subject":
        columns = ("query", "flink_cluster", "flink_job")
        keys = ((column, getattr(row, f"{column}_id")) for column in columns)
        return next(cls(column, key) for column, key in keys if key is not None)


def judge_watched(now: datetime) -> None:
    """Judges everything that is watched once."""
    open_ones: dict[Subject, list[WatchedIncident]] = {}
    for row in WatchedIncident.objects.filter(closed_at=None):
        open_ones.setdefault(Subject.of(row), []).append(row)
    jobs = [each.key for each in open_ones if each.column == "flink_job"]
    for subject, found in _signs(now, jobs):
        rows = open_ones.get(subject, [])
        if found or rows:
            with isolated(f"The incidents of {subject.column} {subject.key}"):
                _judge_one(subject, rows, found, now)


def _signs(now: datetime, jobs: list[int]) -> Iterator[tuple[Subject, list[Sign]]]:
    """Yields the signs of all subjects known about now. `jobs` are those with incidents."""
    for key, query in queries.seen_for_incidents(now):
        yield Subject("query", key), list(signs(query))
    for key, cluster in seen_clusters(now):
        yield Subject("flink_cluster", key), list(cluster_signs(cluster))
    for key, job in seen_jobs(now, jobs):
        yield Subject("flink_job", key), list(job_signs(job))


def _judge_one(
    subject: Subject, rows: list[WatchedIncident], found: list[Sign], now: datetime
) -> None:
    by_cause = {Cause(row.cause): row for row in rows}
    health = Health(now_s=now.timestamp(), is_running=True, is_periodic=False)
    after = judge([_open(row) for row in rows], found, health)
    is_news = False
    for incident in after.open:
        is_news |= _write(subject, by_cause.get(incident.cause), incident)
    for closed in after.closed:
        is_news = True
        mine = WatchedIncident.objects.filter(pk=by_cause[closed.incident.cause].pk)
        mine.filter(closed_at=None).update(closed_at=now)
    if is_news:
        _make_known(subject)


def _write(subject: Subject, row: WatchedIncident | None, incident: Open) -> bool:
    """Returns True if the incident is new."""
    last_at = datetime.fromtimestamp(incident.last_s, UTC)
    if row is not None:
        mine = WatchedIncident.objects.filter(pk=row.pk)
        mine.update(text=incident.text, last_at=last_at)
        return False
    try:
        with transaction.atomic():
            WatchedIncident.objects.create(
                **{f"{subject.column}_id": subject.key},
                cause=incident.cause,
                text=incident.text,
                opened_at=datetime.fromtimestamp(incident.opened_s, UTC),
                last_at=last_at,
            )
    except IntegrityError:  # another round was faster, or the subject is watched no longer
        return False
    return True


def _make_known(subject: Subject) -> None:
    if subject.column == "query":
        work.make_known(subject.key)
    else:
        keeping.make_known(**{subject.column: subject.key})


def _open(row: WatchedIncident) -> Open:
    return Open(
        cause=Cause(row.cause),
        text=row.text,
        opened_s=row.opened_at.timestamp(),
        last_s=row.last_at.timestamp(),
    )


def untold() -> list[tuple[WatchedIncident, bool]]:
    """Returns incidents that the channels have no message about yet; True: that they are over."""
    rows = WatchedIncident.objects.select_related(*PARTS)
    opened = rows.filter(told_opened=False)
    closed = rows.filter(told_opened=True, told_closed=False).exclude(closed_at=None)
    return [*((row, False) for row in opened), *((row, True) for row in closed)]


def note_told(row: WatchedIncident, *, is_over: bool) -> bool:
    """Returns True once. Call it in the transaction that stores the messages."""
    mine = WatchedIncident.objects.filter(pk=row.pk)
    if is_over:
        return bool(mine.filter(told_closed=False).update(told_closed=True))
    return bool(mine.filter(told_opened=False).update(told_opened=True))
