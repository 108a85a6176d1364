"""Registers queries to watch, and removes them. The admin log keeps who did it, and why.

A query is one row, no matter where it is seen: a directory whose `metadata` names a query that a
listener already reports is added to that query. A removed query keeps its id, so that the reports
of its listener are ignored until it is registered again.
"""

import math
import re
from dataclasses import dataclass, replace

import msgspec
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from ftdash.accounts.services import record
from ftdash.jobs.validation import check_reason
from ftdash.watching import reading
from ftdash.watching.incident_signs import Limits
from ftdash.watching.models import (
    DirectoryReading,
    ListenerSeen,
    RunEvent,
    WatchedBatch,
    WatchedIncident,
    WatchedQuery,
)
from ftdash.watching.services.reports import ID_LENGTH_MAX, check_free_space, keep_look
from pipelines.domain.errors import Rejected

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Where a query can be seen, as a person gives it. At least one of the first three."""

    directory: str = ""
    event_log: str = ""
    query_id: str = ""
    output: str = ""
    trigger_interval_ms: int | None = None


def watch(*, name: str, seen: Sighting, requester: str, reason: str) -> WatchedQuery:
    """Register a query, or tell more about a known one with this query id.

    Looks into the directory first, and only reads it. Raises Rejected, and Retryable if the storage
    does not answer.
    """
    reason = check_reason(reason)
    _check(name, seen)
    seen, look = _looked_at(seen)
    with transaction.atomic():
        known = _known(name, seen.query_id)
        if known is None:
            check_free_space()
            known = WatchedQuery(created_by=requester, created_at=timezone.now())
        for field in ("directory", "event_log", "query_id", "output", "trigger_interval_ms"):
            given = getattr(seen, field)
            if given:
                setattr(known, field, given)
        known.name, known.removed_at, known.version = name, None, known.version + 1
        known.save()
        if look is not None:
            keep_look(known, look, took_ms=0.0)
        record(
            who=requester,
            what="began to watch",
            subject=f"query {name}",
            reason=reason,
            detail=", ".join(filter(None, (seen.directory, seen.event_log, seen.query_id))),
        )
    return known


def set_limits(*, name: str, limits: Limits, requester: str, reason: str) -> None:
    """Sets when incidents of the query open. Raises Rejected."""
    reason = check_reason(reason)
    given = msgspec.to_builtins(limits)
    if not all(0 < each < math.inf for each in given.values()):
        raise Rejected(
            "A limit has to be above 0. Leave it out to go by what is usual for the query."
        )
    with transaction.atomic():
        row = _watched(name)
        row.limits, row.version = given, row.version + 1
        row.save()
        record(
            who=requester,
            what="set the limits",
            subject=f"query {name}",
            reason=reason,
            detail=limits.words or "as usual",
        )


def remove(*, name: str, requester: str, reason: str) -> None:
    """Deletes its history, and ignores later reports of its listener. The query continues."""
    reason = check_reason(reason)
    with transaction.atomic():
        row = _watched(name)
        for table in (WatchedBatch, RunEvent, ListenerSeen, DirectoryReading, WatchedIncident):
            table._default_manager.filter(query=row).delete()
        if row.query_id:
            row.removed_at, row.version = timezone.now(), row.version + 1
            row.standing, row.log_positions, row.restart_count = {}, {}, 0
            row.directory = row.event_log = row.output = ""
            row.limits = None
            row.name = f"removed-{row.pk}"
            row.save()
        else:
            row.delete()
        record(who=requester, what="ceased to watch", subject=f"query {name}", reason=reason)


def _watched(name: str) -> WatchedQuery:
    """Returns the row, locked until the transaction ends. Raises Rejected if there is none."""
    row = WatchedQuery.objects.select_for_update().filter(name=name, removed_at=None).first()
    if row is None:
        raise Rejected(f"There is no watched query {name!r}.")
    return row


def _looked_at(seen: Sighting) -> tuple[Sighting, reading.DirectoryLook | None]:
    """Returns `seen` with the id that the directory names, and the look into it."""
    places = reading.place_of(seen.directory), reading.place_of(seen.output)
    seen = replace(seen, directory=places[0], output=places[1])
    if seen.event_log:
        reading.read_log(seen.event_log, settings.WATCH_ROOTS, {})
    if not seen.directory:
        return seen, None
    look = reading.look_into(
        seen.directory,
        settings.WATCH_ROOTS,
        output=seen.output,
        trigger_interval_ms=seen.trigger_interval_ms,
    )
    query_id = look.found.query_id
    if seen.query_id and query_id and seen.query_id != query_id:
        raise Rejected(
            f"{seen.directory} belongs to the query {query_id}, not to {seen.query_id}; leave the"
            " id out, or give the directory of that query."
        )
    return replace(seen, query_id=query_id or seen.query_id), look


def _check(name: str, seen: Sighting) -> None:
    if not _NAME.fullmatch(name):
        raise Rejected(
            f"The name {name!r} cannot be used; take up to 80 lower-case letters, digits, '-' and"
            " '_', and begin with a letter or digit."
        )
    if not (seen.directory or seen.event_log or seen.query_id):
        raise Rejected(
            "Give the checkpoint directory, the event log or the id of the query; with none of"
            " them there is nothing to watch."
        )
    if len(seen.query_id) > ID_LENGTH_MAX:
        raise Rejected("A query id has at most 64 characters; it is the `id` in `metadata`.")


def _known(name: str, query_id: str) -> WatchedQuery | None:
    """Returns the row to change. Raises Rejected if the name belongs to another query."""
    rows = WatchedQuery.objects.select_for_update()
    named = rows.filter(name=name).first()
    same = rows.filter(query_id=query_id).first() if query_id else None
    if named is None:
        return same
    if same is None and (not named.query_id or not query_id):
        return named
    if same is not None and same.pk == named.pk:
        return named
    raise Rejected(
        f"The name {name!r} belongs to the watched query {named.query_id}; choose another name."
    )
