"""Long work on the files of a watched query: stored as a row, carried out by a separate process.

A worker starts the process; a command carries the work out itself. While that process reads and
copies, it reports each step and shows signs of life. If it falls silent, the work ends as failed,
and everything that it had begun to write is removed. Work ends once: the second process to end it
changes nothing.
"""

import logging
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import F
from django.utils import timezone

from ftdash.accounts.services import record
from ftdash.errands import Errand, isolated, publish_on_commit
from ftdash.jobs.validation import check_reason
from ftdash.watching.models import (
    QuerySavepoint,
    QueryWork,
    WatchedQuery,
    WorkKind,
    WorkState,
)
from pipelines.domain.errors import Rejected, Retryable
from pipelines.storage.trees import tree_at

log = logging.getLogger("ftdash.watching")

OPEN_MAX = 4
KEPT_MAX = 500
"""How many ended works of each query are kept."""

SIGN_OF_LIFE_S = 2.0
TELL_EVERY_S = 0.5
FORGOTTEN_AFTER = timedelta(seconds=5)
SILENT_AFTER = timedelta(seconds=60)
INTERRUPTED = (
    "It was interrupted before it ended; what it had begun to write is removed. Ask again."
)
LEFT_THERE = (
    "It was interrupted when the fork was complete; the fork is left where it is. Judge it with"
    " `manage.py watch check`, or delete it and ask again."
)


class Interrupted(Exception):
    """Another process has ended this work."""


def watched_row(name: str) -> WatchedQuery:
    """Raises Rejected if no query of that name is watched."""
    row = WatchedQuery.objects.filter(name=name, removed_at=None).first()
    if row is None:
        raise Rejected(f"There is no watched query {name!r}; see `manage.py watch list`.")
    return row


def savepoint_row(query: WatchedQuery, key: int) -> QuerySavepoint:
    """Raises Rejected if the query has no such savepoint, or if it is deleted."""
    row = QuerySavepoint.objects.filter(query=query, pk=key).first()
    if row is None:
        raise Rejected(
            f"{query.name} has no savepoint {key}; see `manage.py watch savepoint list"
            f" {query.name}`."
        )
    if row.deleted_at is not None:
        raise Rejected(f"The savepoint {row.label!r} of {query.name} was deleted.")
    return row


def all_roots() -> list[str]:
    """Returns where queries and their savepoints may be read."""
    return [*settings.WATCH_ROOTS, settings.WATCH_SAVEPOINTS]


def ask(
    query: WatchedQuery,
    kind: WorkKind,
    *,
    what: str,
    work_request: Any,
    requester: str,
    reason: str,
    detail: str = "",
    savepoint: QuerySavepoint | None = None,
    is_here: bool = False,
) -> int:
    """Store work; with `is_here`, the caller carries it out. Raises Rejected without room."""
    reason = check_reason(reason)
    now = timezone.now()
    try:
        with transaction.atomic():
            if QueryWork.objects.filter(ended_at=None).count() >= OPEN_MAX:
                raise Rejected(f"{OPEN_MAX} works on files are under way; ask again later.")
            row = QueryWork.objects.create(
                query=query,
                savepoint=savepoint,
                kind=kind,
                state=WorkState.RUNNING if is_here else WorkState.WAITING,
                asked=msgspec.to_builtins(work_request),
                requester=requester,
                reason=reason,
                created_at=now,
                started_at=now if is_here else None,
                moved_at=now,
            )
            record(
                who=requester,
                what=what,
                subject=f"query {query.name}",
                reason=reason,
                detail=detail,
            )
            _forget_oldest(query)
            make_known(query.pk)
            if not is_here:
                publish_on_commit(Errand.DO_QUERY_WORK, row.pk)
    except IntegrityError as error:
        raise Rejected(
            f"A {WorkKind(kind).label} of {query.name} is under way already; wait until it ends."
        ) from error
    return int(row.pk)


def _forget_oldest(query: WatchedQuery) -> None:
    """Deletes the oldest ended works: results may be large, and the audit log keeps who asked."""
    ended = QueryWork.objects.filter(query=query).exclude(ended_at=None).order_by("-pk")
    too_old = list(ended.values_list("pk", flat=True)[KEPT_MAX:])
    QueryWork.objects.filter(pk__in=too_old).delete()


def start(key: int) -> None:
    """Has no effect if the work was started already."""
    now = timezone.now()
    waiting = QueryWork.objects.filter(pk=key, state=WorkState.WAITING)
    if not waiting.update(state=WorkState.RUNNING, started_at=now, moved_at=now, step="starting"):
        return
    with (settings.FTDASH_HOME / "query-work.log").open("ab") as log_file:
        process = subprocess.Popen(
            [*settings.MANAGE_COMMAND, "carry_out", "query-work", str(key)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            cwd=settings.BASE_DIR,
            start_new_session=True,
        )
    # Only a wait removes a dead child from the process table.
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()


def start_forgotten() -> None:
    """Starts work whose message never reached a broker."""
    since = timezone.now() - FORGOTTEN_AFTER
    for row in QueryWork.objects.filter(state=WorkState.WAITING, created_at__lt=since):
        with isolated(f"The start of query work {row.pk}"):
            start(row.pk)


def end_silent() -> None:
    """Ends work whose process is gone, and removes what it had begun to write."""
    since = timezone.now() - SILENT_AFTER
    for row in QueryWork.objects.filter(state=WorkState.RUNNING, moved_at__lt=since):
        with isolated(f"The end of query work {row.pk}"):
            if end(row.pk, problem=INTERRUPTED):
                _clear_away(row)


def _clear_away(row: QueryWork) -> None:
    """Removes what a work had begun to write, except a complete fork.

    A fork that has its `metadata`, which is written last, is complete: a job may run from it. That
    of a repartition is not, because nothing has compared its state yet.
    """
    trees = [tree_at(place, all_roots()) for place in row.writes_to]
    is_only_copied = row.kind == WorkKind.FORK and row.asked.get("partitions") is None
    if is_only_copied and any(tree.read("metadata") is not None for tree in trees):
        QueryWork.objects.filter(pk=row.pk).update(problem=LEFT_THERE)
        return
    for tree in trees:
        tree.delete_all()


class Progress:
    """How far one work has come, for its row. Called by the thread that does the work."""

    def __init__(self, row: QueryWork) -> None:
        self._row = row
        self._told_at = timezone.now()

    def step(self, text: str, *, writes_to: list[str] | None = None) -> None:
        """Raises Interrupted if the work was ended meanwhile."""
        more = {} if writes_to is None else {"writes_to": writes_to}
        self._tell(step=text, done=0, of=0, **more)

    def files(self, done: int, of: int) -> None:
        now = timezone.now()
        if (now - self._told_at).total_seconds() >= TELL_EVERY_S:
            self._told_at = now
            self._tell(done=done, of=of)

    def _tell(self, **columns: Any) -> None:
        mine = QueryWork.objects.filter(pk=self._row.pk, state=WorkState.RUNNING)
        if not mine.update(moved_at=timezone.now(), **columns):
            raise Interrupted
        make_known(self._row.query_id)


def end(key: int, *, result: Any = None, problem: str = "") -> bool:
    """Ends the work, unless it has ended already. Returns True if this was the end."""
    state = WorkState.FAILED if problem else WorkState.SUCCEEDED
    ended = QueryWork.objects.filter(pk=key, ended_at=None).update(
        state=state,
        ended_at=timezone.now(),
        step="",
        problem=problem,
        result={} if result is None else msgspec.to_builtins(result),
    )
    if ended:
        make_known(QueryWork.objects.get(pk=key).query_id)
    return bool(ended)


def make_known(query: int) -> None:
    """Raises the version, which makes open pages ask again."""
    WatchedQuery.objects.filter(pk=query).update(version=F("version") + 1)


@contextmanager
def signs_of_life(key: int) -> Iterator[None]:
    has_ended = threading.Event()

    def beat() -> None:
        while not has_ended.wait(SIGN_OF_LIFE_S):
            try:
                alive = QueryWork.objects.filter(pk=key, state=WorkState.RUNNING)
                alive.update(moved_at=timezone.now())
            except OperationalError as error:  # the database is locked or away: try next time
                log.warning("The sign of life of query work %s waits: %s", key, error)
        connection.close()

    beating = threading.Thread(target=beat, name="signs-of-life", daemon=True)
    beating.start()
    try:
        yield
    finally:
        has_ended.set()
        beating.join()


PROBLEMS = (Rejected, Retryable, Interrupted)
"""Errors that may end a work, each as a sentence for people."""
