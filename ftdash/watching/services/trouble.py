"""Opens and closes the incidents of watched queries, from their rows alone.

A worker judges every few seconds. Every round starts from the rows, so two rounds at once or a
worker that dies in between change nothing. An incident is over when its sign has been gone for as
long as the machine of incidents says.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from django.db import IntegrityError, transaction

from ftdash.errands import isolated
from ftdash.incidents.causes import Cause
from ftdash.incidents.machine import Health, Open, Sign, judge
from ftdash.watching import queries
from ftdash.watching.models import QueryIncident, WatchedQuery
from ftdash.watching.services import work
from ftdash.watching.trouble import signs


def judge_queries(now: datetime) -> None:
    """One round for all watched queries."""
    open_ones: dict[str, list[QueryIncident]] = {}
    for row in QueryIncident.objects.filter(closed_at=None).select_related("query"):
        open_ones.setdefault(row.query.name, []).append(row)
    for seen, name in queries.seen_for_incidents(now):
        found, rows = list(signs(seen)), open_ones.get(name, [])
        if found or rows:
            with isolated(f"The incidents of {name}"):
                _judge_one(name, rows, found, now)


def _judge_one(name: str, rows: list[QueryIncident], found: Iterable[Sign], now: datetime) -> None:
    by_cause = {Cause(row.cause): row for row in rows}
    health = Health(now_s=now.timestamp(), is_running=True, is_periodic=False)
    after = judge([_open(row) for row in rows], found, health)
    is_news = False
    for incident in after.open:
        is_news |= _write(name, by_cause.get(incident.cause), incident)
    for closed in after.closed:
        is_news = True
        QueryIncident.objects.filter(pk=by_cause[closed.incident.cause].pk, closed_at=None).update(
            closed_at=now
        )
    if is_news:
        work.make_known(WatchedQuery.objects.get(name=name).pk)


def _write(name: str, row: QueryIncident | None, incident: Open) -> bool:
    """True if it is new."""
    last_at = datetime.fromtimestamp(incident.last_s, UTC)
    if row is not None:
        QueryIncident.objects.filter(pk=row.pk).update(text=incident.text, last_at=last_at)
        return False
    try:
        with transaction.atomic():
            QueryIncident.objects.create(
                query=WatchedQuery.objects.get(name=name),
                cause=incident.cause,
                text=incident.text,
                opened_at=datetime.fromtimestamp(incident.opened_s, UTC),
                last_at=last_at,
            )
    except IntegrityError:  # another round was faster
        return False
    return True


def _open(row: QueryIncident) -> Open:
    return Open(
        cause=Cause(row.cause),
        text=row.text,
        opened_s=row.opened_at.timestamp(),
        last_s=row.last_at.timestamp(),
    )


def untold() -> list[tuple[QueryIncident, bool]]:
    """Incidents that the channels have no message about yet; True: that they are over."""
    opened = QueryIncident.objects.filter(told_opened=False).select_related("query")
    closed = QueryIncident.objects.filter(told_opened=True, told_closed=False)
    closed = closed.exclude(closed_at=None).select_related("query")
    return [*((row, False) for row in opened), *((row, True) for row in closed)]


def note_told(row: QueryIncident, *, is_over: bool) -> bool:
    """True once. Within the transaction that stores the messages."""
    if is_over:
        mine = QueryIncident.objects.filter(pk=row.pk, told_closed=False)
        return bool(mine.update(told_closed=True))
    return bool(QueryIncident.objects.filter(pk=row.pk, told_opened=False).update(told_opened=True))
