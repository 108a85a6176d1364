"""Looks into the state of a watched query: rows of a store, and what differs between two places.

Only Spark can read state. It runs in a process of its own, because the control plane never loads
it. That process ends when this one does, because this one holds the other end of its standard
input.
"""

import os
import subprocess
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from django.conf import settings

from ftdash.supervision import java
from ftdash.watching.models import QueryWork, WatchedQuery, WorkKind
from ftdash.watching.services import work
from ftdash.watching.work_requests import ROWS_MAX, LookAtState, StatePlace, StateRows
from pipelines.domain.errors import UNDECODABLE, Rejected

SAID_LENGTH_MAX = 1_000
A = TypeVar("A")


def answer_of_spark(
    command: Sequence[str],
    question: object,
    kind: type[A],
    *,
    limit_s: float,
    failed: str,
    late: str,
) -> A:
    """Returns the answer. Raises Rejected with `late` after the limit, or with `failed` and why.

    When this returns or raises, the process has ended, and so has Spark.
    """
    reading, writing = os.pipe()
    with (
        os.fdopen(reading, "rb") as question_end,
        os.fdopen(writing, "wb", buffering=0) as held,
        subprocess.Popen(
            command,
            stdin=question_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=settings.BASE_DIR,
            env={**os.environ, **java.environment()},
        ) as process,
    ):
        held.write(msgspec.json.encode(question) + b"\n")
        try:
            answer, said = process.communicate(timeout=limit_s)
        except BaseException as error:
            process.kill()
            process.communicate()  # until Spark has ended too, which has its own ends of the pipes
            if isinstance(error, subprocess.TimeoutExpired):
                raise Rejected(late) from error
            raise
    if process.returncode:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise Rejected(f"{failed}: {last[:SAID_LENGTH_MAX]}")
    try:
        return msgspec.json.decode(answer, type=kind)
    except UNDECODABLE as error:
        raise Rejected(f"{failed}: its answer cannot be read: {error}") from error


TIME_LIMIT_S = 600
KEY_LENGTH_MAX = 1_000
TOO_LATE = (
    f"Spark did not read the state within {TIME_LIMIT_S // 60} minutes; give a part of the key, or"
    " read it with Spark's source `statestore` on a cluster."
)


def ask_to_look(
    name: str, request: LookAtState, *, requester: str, reason: str, is_here: bool = False
) -> int:
    """Returns the key of the work. Raises Rejected."""
    query = work.watched_row(name)
    if len(request.key) > KEY_LENGTH_MAX:
        raise Rejected(f"The part of a key has at most {KEY_LENGTH_MAX:,} characters.")
    for place in filter(None, (request.place, request.other)):
        _location(query, place)
    return work.ask(
        query,
        WorkKind.STATE,
        what="looked into the state of",
        work_request=request,
        requester=requester,
        reason=reason,
        detail=f"operator {request.operator_id}, store {request.store},"
        f" batch {request.place.batch_id}",
        is_here=is_here,
    )


def look(row: QueryWork, progress: work.Progress) -> None:
    request = msgspec.convert(row.asked, LookAtState)
    places = [_location(row.query, p) for p in (request.place, request.other) if p is not None]
    batches = [p.batch_id for p in (request.place, request.other) if p is not None]
    question = {
        "places": [
            {"location": location, "batch_id": batch}
            for location, batch in zip(places, batches, strict=True)
        ],
        "operator_id": request.operator_id,
        "store": request.store,
        "key": request.key,
        "rows_max": ROWS_MAX,
    }
    progress.step("starts Spark and reads the state")
    found = answer_of_spark(
        settings.STATE_COMMAND,
        question,
        StateRows,
        limit_s=TIME_LIMIT_S,
        failed="The state cannot be read",
        late=TOO_LATE,
    )
    work.end(row.pk, result=found)


def _location(query: WatchedQuery, place: StatePlace) -> str:
    """Returns the location of a place. Raises Rejected if it is not known."""
    if place.savepoint is None:
        if not query.directory:
            raise Rejected(f"The checkpoint directory of {query.name} is not known.")
        return query.directory
    saved = work.savepoint_row(query, place.savepoint)
    if saved.batch_id != place.batch_id:
        raise Rejected(f"{saved.label} holds batch {saved.batch_id}, not {place.batch_id}.")
    return saved.location
