"""Looks into the state of a watched query: rows of a store, and what differs between two places.

Only Spark can read state; `asking_spark` starts it.
"""

import msgspec
from django.conf import settings

from ftdash.watching.asked import ROWS_MAX, LookAtState, StatePlace, StateRows
from ftdash.watching.models import QueryWork, WatchedQuery, WorkKind
from ftdash.watching.services import work
from ftdash.watching.services.asking_spark import asked_of_spark
from pipelines.domain.errors import Rejected

TIME_LIMIT_S = 600
KEY_LENGTH_MAX = 1_000
TOO_LATE = (
    f"Spark did not read the state within {TIME_LIMIT_S // 60} minutes; give a part of the key, or"
    " read it with Spark's source `statestore` on a cluster."
)


def ask_to_look(
    name: str, asked: LookAtState, *, requester: str, reason: str, is_here: bool = False
) -> int:
    """The key of the work. Raises Rejected."""
    query = work.watched_row(name)
    if len(asked.key) > KEY_LENGTH_MAX:
        raise Rejected(f"The part of a key has at most {KEY_LENGTH_MAX:,} characters.")
    for place in filter(None, (asked.place, asked.other)):
        _location(query, place)
    return work.ask(
        query,
        WorkKind.STATE,
        what="looked into the state of",
        asked=asked,
        requester=requester,
        reason=reason,
        detail=f"operator {asked.operator_id}, store {asked.store}, batch {asked.place.batch_id}",
        is_here=is_here,
    )


def look(row: QueryWork, progress: work.Progress) -> None:
    asked = msgspec.convert(row.asked, LookAtState)
    places = [_location(row.query, p) for p in (asked.place, asked.other) if p is not None]
    batches = [p.batch_id for p in (asked.place, asked.other) if p is not None]
    question = {
        "places": [
            {"location": location, "batch_id": batch}
            for location, batch in zip(places, batches, strict=True)
        ],
        "operator_id": asked.operator_id,
        "store": asked.store,
        "key": asked.key,
        "rows_max": ROWS_MAX,
    }
    progress.step("starts Spark and reads the state")
    found = asked_of_spark(
        settings.STATE_COMMAND,
        question,
        StateRows,
        limit_s=TIME_LIMIT_S,
        failed="The state cannot be read",
        late=TOO_LATE,
    )
    work.end(row.pk, result=found)


def _location(query: WatchedQuery, place: StatePlace) -> str:
    """Raises Rejected if it is not known."""
    if place.savepoint is None:
        if not query.directory:
            raise Rejected(f"The checkpoint directory of {query.name} is not known.")
        return query.directory
    saved = work.savepoint_row(query, place.savepoint)
    if saved.batch_id != place.batch_id:
        raise Rejected(f"{saved.label} holds batch {saved.batch_id}, not {place.batch_id}.")
    return saved.location
