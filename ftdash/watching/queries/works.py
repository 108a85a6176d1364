"""Reads savepoints of watched queries, and the work on their files."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings
from django.db.models import Count

from ftdash.watching.models import QuerySavepoint, QueryWork, WatchedQuery, WorkKind, WorkState
from ftdash.watching.services.savepoints import newest_complete, opened
from ftdash.watching.services.work import savepoint_row, watched_row
from pipelines.domain.errors import Rejected
from pipelines.storage.trees import tree_at
from pipelines.structured.directory import read_tree
from pipelines.structured.moving import Move, move_behind
from pipelines.structured.savepoints import MANIFEST

SAVEPOINTS_MAX = 200
WORKS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointView:
    key: int
    query: str
    label: str
    location: str
    batch_id: int
    keeps_next: bool
    store: str
    size_bytes: int
    file_count: int
    digest: str
    taken_by: str
    taken_at: datetime
    verified_at: datetime | None
    problems: list[str]
    keep_until: datetime | None
    deleted_at: datetime | None
    deleted_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkView:
    """`asked` and `result` have the types that `work_requests` defines for each kind."""

    key: int
    kind: WorkKind
    state: WorkState
    requester: str
    reason: str
    created_at: datetime
    ended_at: datetime | None
    step: str
    done: int
    of: int
    problem: str
    savepoint: int | None
    asked: dict[str, Any]
    result: dict[str, Any]


def savepoints(name: str) -> list[SavepointView]:
    """Returns savepoints newest first, even deleted ones. Raises Rejected if it is not watched."""
    return savepoints_of(watched_row(name))


def savepoint(name: str, key: int) -> SavepointView | None:
    found = QuerySavepoint.objects.filter(query__name=name, query__removed_at=None, pk=key).first()
    return None if found is None else _savepoint(found, name)


def manifest(name: str, key: int) -> bytes:
    """Returns the manifest as it is stored. Raises Rejected if there is none."""
    row = savepoint_row(watched_row(name), key)
    content = tree_at(row.location, [settings.WATCH_SAVEPOINTS]).read(MANIFEST)
    if content is None:
        raise Rejected(f"{row.location} has no {MANIFEST}; the savepoint is damaged.")
    return content


def newest_point(name: str, savepoint: int | None) -> int | None:
    """Returns the batch of the savepoint, or the newest complete one of the directory."""
    row = watched_row(name)
    if savepoint is not None:
        return int(savepoint_row(row, savepoint).batch_id)
    return newest_complete(opened(row)[1])


def move(name: str, batch_id: int, savepoint: int | None) -> Move:
    """Returns where a pipeline of ours begins after that batch. Raises Rejected and Retryable."""
    row = watched_row(name)
    if savepoint is None:
        tree, directory = opened(row)
    else:
        tree = tree_at(savepoint_row(row, savepoint).location, [settings.WATCH_SAVEPOINTS])
        directory = read_tree(tree)
    return move_behind(tree, directory, batch_id)


def work(name: str, key: int) -> WorkView | None:
    found = QueryWork.objects.filter(query__name=name, query__removed_at=None, pk=key).first()
    return None if found is None else _work(found)


def kept_counts() -> dict[str, int]:
    """Returns by the name of each query how many savepoints have their files."""
    kept = QuerySavepoint.objects.filter(deleted_at=None, query__removed_at=None).order_by()
    return dict(kept.values_list("query__name").annotate(Count("pk")))


def line_to_change(forked: dict[str, Any]) -> str:
    """Returns the lines to change in the user's job."""
    lines = [f'.option("checkpointLocation", {_quoted(forked["location"])})']
    if forked["output_target"]:
        lines.append(f'.option("path", {_quoted(forked["output_target"])})')
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def savepoints_of(row: WatchedQuery) -> list[SavepointView]:
    found = QuerySavepoint.objects.filter(query=row)[:SAVEPOINTS_MAX]
    return [_savepoint(each, row.name) for each in found]


def works_of(row: WatchedQuery) -> list[WorkView]:
    return [_work(each) for each in QueryWork.objects.filter(query=row)[:WORKS_MAX]]


def _savepoint(row: QuerySavepoint, query: str) -> SavepointView:
    return SavepointView(
        key=row.pk,
        query=query,
        label=row.label,
        location=row.location,
        batch_id=row.batch_id,
        keeps_next=row.keeps_next,
        store=row.store,
        size_bytes=row.size_bytes,
        file_count=row.file_count,
        digest=row.digest,
        taken_by=row.taken_by,
        taken_at=row.taken_at,
        verified_at=row.verified_at,
        problems=row.problems,
        keep_until=row.keep_until,
        deleted_at=row.deleted_at,
        deleted_by=row.deleted_by,
    )


def _work(row: QueryWork) -> WorkView:
    return WorkView(
        key=row.pk,
        kind=WorkKind(row.kind),
        state=WorkState(row.state),
        requester=row.requester,
        reason=row.reason,
        created_at=row.created_at,
        ended_at=row.ended_at,
        step=row.step,
        done=row.done,
        of=row.of,
        problem=row.problem,
        savepoint=row.savepoint_id,
        asked=row.asked,
        result=row.result,
    )
