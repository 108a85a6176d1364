"""Reads the incidents of watched queries, each with its next step."""

from dataclasses import dataclass
from datetime import datetime

from ftdash.incidents.causes import ADVICE, Cause
from ftdash.watching.models import QueryIncident

INCIDENTS_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryIncidentView:
    key: int
    query: str
    cause: Cause
    title: str
    text: str
    next_step: str
    opened_at: datetime
    last_at: datetime
    closed_at: datetime | None


def incidents(name: str | None = None, *, with_closed: bool = False) -> list[QueryIncidentView]:
    """Of one query or of all; the open ones first, each group newest first."""
    rows = QueryIncident.objects.filter(query__removed_at=None).select_related("query")
    if name is not None:
        rows = rows.filter(query__name=name)
    found = [*rows.filter(closed_at=None)[:INCIDENTS_MAX]]
    if with_closed:
        found += rows.exclude(closed_at=None)[:INCIDENTS_MAX]
    return [_incident(row) for row in found]


def _incident(row: QueryIncident) -> QueryIncidentView:
    cause = Cause(row.cause)
    return QueryIncidentView(
        key=row.pk,
        query=row.query.name,
        cause=cause,
        title=ADVICE[cause].title,
        text=row.text,
        next_step=ADVICE[cause].step,
        opened_at=row.opened_at,
        last_at=row.last_at,
        closed_at=row.closed_at,
    )
