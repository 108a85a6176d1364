"""Savepoints of watched queries: taken, verified, kept for as long as a person says, and deleted.

They lie below `FTDASH_WATCH_SAVEPOINTS`, each in a directory of its own, and never in that of a
query. Each is verified again when `FTDASH_WATCH_VERIFY_DAYS` have passed.
"""

from datetime import datetime, timedelta

import msgspec
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify

from ftdash.accounts.services import record
from ftdash.errands import isolated
from ftdash.jobs.validation import check_reason
from ftdash.watching.models import QuerySavepoint, QueryWork, WatchedQuery, WorkKind
from ftdash.watching.services import work
from ftdash.watching.work_requests import LABEL_LENGTH_MAX, TakeSavepoint
from pipelines.disk.files import RunningDigest
from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.storage.trees import Tree, tree_at
from pipelines.structured.directory import read_query
from pipelines.structured.query import QueryDirectory
from pipelines.structured.recovery import recovery_points
from pipelines.structured.savepoints import (
    MANIFEST,
    SavepointRequest,
    take_savepoint,
    verify_savepoint,
)

PROBLEMS_MAX = 20
OURSELVES = "ftdash"
"""The actor in the log of what the schedule does."""

KEEP_DAYS_MAX = 36_500.0


def ask_to_take(
    name: str, wanted: TakeSavepoint, *, requester: str, reason: str, is_here: bool = False
) -> int:
    """Returns the key of the work. Raises Rejected."""
    query = work.watched_row(name)
    label = wanted.label.strip()
    if not label or len(label) > LABEL_LENGTH_MAX:
        raise Rejected(f"Give the savepoint a label of 1 to {LABEL_LENGTH_MAX} characters.")
    _until(wanted.keep_days)
    if not query.directory:
        raise Rejected(
            f'The checkpoint directory of {name} is not known; give it under "Watch a query" with'
            " the same name."
        )
    batch = "the newest complete batch" if wanted.batch_id is None else f"batch {wanted.batch_id}"
    return work.ask(
        query,
        WorkKind.SAVEPOINT,
        what="took a savepoint of",
        work_request=wanted,
        requester=requester,
        reason=reason,
        detail=f"{label}, {batch}",
        is_here=is_here,
    )


def take(row: QueryWork, progress: work.Progress) -> None:
    wanted = msgspec.convert(row.asked, TakeSavepoint)
    progress.step("reads the checkpoint directory")
    source, directory = opened(row.query)
    batch_id = newest_complete(directory) if wanted.batch_id is None else wanted.batch_id
    place = "/".join(
        (
            str(settings.WATCH_SAVEPOINTS).rstrip("/"),
            slugify(row.query.query_id)[:64],
            f"{batch_id}-{row.pk}-{slugify(wanted.label)[:40] or 'savepoint'}",
        )
    )
    target = tree_at(place, [settings.WATCH_SAVEPOINTS])
    progress.step(f"copies batch {batch_id}", writes_to=[target.location])
    now = timezone.now()
    request = SavepointRequest(
        batch_id=batch_id,
        label=wanted.label.strip(),
        taken_ms=round(now.timestamp() * 1000),
        keeps_next=wanted.keeps_next,
    )
    manifest = take_savepoint(source, directory, target, request, progress.files)
    with transaction.atomic():
        made = QuerySavepoint.objects.create(
            query=row.query,
            label=manifest.label,
            location=target.location,
            batch_id=batch_id,
            keeps_next=manifest.keeps_next,
            store=manifest.store,
            size_bytes=manifest.size_bytes,
            file_count=len(manifest.files),
            digest=_digest(target),
            taken_by=row.requester,
            taken_at=now,
            verified_at=now,  # a copy is verified when it is made
            keep_until=_until(wanted.keep_days),
        )
        QueryWork.objects.filter(pk=row.pk).update(savepoint=made)
        is_ours = work.end(row.pk, result={"savepoint": made.pk, "batch_id": batch_id})
        if not is_ours:
            raise work.Interrupted


def ask_to_verify(
    name: str, key: int, *, requester: str, reason: str, is_here: bool = False
) -> int:
    query = work.watched_row(name)
    return _ask_to_verify(query, work.savepoint_row(query, key), requester, reason, is_here=is_here)


def _ask_to_verify(
    query: WatchedQuery, saved: QuerySavepoint, requester: str, reason: str, *, is_here: bool
) -> int:
    return work.ask(
        query,
        WorkKind.VERIFICATION,
        what="verified a savepoint of",
        work_request={},
        requester=requester,
        reason=reason,
        detail=saved.label,
        savepoint=saved,
        is_here=is_here,
    )


def verify(row: QueryWork, progress: work.Progress) -> None:
    """Reads every byte. Differences are kept at the savepoint, and are no failure of the work."""
    saved = _existing(row)
    progress.step("reads every file")
    tree = tree_at(saved.location, [settings.WATCH_SAVEPOINTS])
    try:
        problems = list(verify_savepoint(tree, progress.files))
        if _digest(tree) != saved.digest:
            problems.insert(0, f"{tree.location}/{MANIFEST} has been altered.")
    except CorruptSnapshot as damage:
        problems = [str(damage)]
    with transaction.atomic():
        saved.verified_at, saved.problems = timezone.now(), problems[:PROBLEMS_MAX]
        saved.save(update_fields=["verified_at", "problems"])
        work.end(row.pk, result={"problems": problems[:PROBLEMS_MAX]})


def ask_to_delete(
    name: str, key: int, *, confirmation: str, requester: str, reason: str, is_here: bool = False
) -> int:
    """`confirmation` is the label, typed again."""
    query = work.watched_row(name)
    saved = work.savepoint_row(query, key)
    if confirmation.strip() != saved.label:
        raise Rejected(f"Type the savepoint's label, {saved.label}, to delete its files.")
    return _ask_to_delete(query, saved, requester, reason, is_here=is_here)


def _ask_to_delete(
    query: WatchedQuery, saved: QuerySavepoint, requester: str, reason: str, *, is_here: bool
) -> int:
    if QueryWork.objects.filter(savepoint=saved, ended_at=None).exists():
        raise Rejected(f"{saved.label} is in use by other work; delete it when that has ended.")
    return work.ask(
        query,
        WorkKind.DELETION,
        what="deleted a savepoint of",
        work_request={},
        requester=requester,
        reason=reason,
        detail=f"{saved.label}, batch {saved.batch_id}",
        savepoint=saved,
        is_here=is_here,
    )


def delete(row: QueryWork, progress: work.Progress) -> None:
    """The row stays, so that the list says what there was."""
    saved = _existing(row)
    progress.step("deletes the files")
    tree_at(saved.location, [settings.WATCH_SAVEPOINTS]).delete_all()
    with transaction.atomic():
        saved.deleted_at, saved.deleted_by = timezone.now(), row.requester
        saved.save(update_fields=["deleted_at", "deleted_by"])
        work.end(row.pk)


def keep(name: str, key: int, *, days: float | None, requester: str, reason: str) -> None:
    """Keep the savepoint for `days` from now; None means without end."""
    reason = check_reason(reason)
    until = _until(days)
    with transaction.atomic():
        query = work.watched_row(name)
        saved = work.savepoint_row(query, key)
        saved.keep_until = until
        saved.save(update_fields=["keep_until"])
        record(
            who=requester,
            what="set the shelf life of a savepoint of",
            subject=f"query {name}",
            reason=reason,
            detail=f"{saved.label}, {'without end' if days is None else f'{days:g} days'}",
        )
        work.make_known(query.pk)


def look_after(now: datetime) -> None:
    """Delete savepoints past their shelf life, and verify those not looked at for long."""
    kept = QuerySavepoint.objects.filter(deleted_at=None, query__removed_at=None)
    kept = kept.select_related("query")
    for saved in kept.filter(keep_until__lt=now):
        with isolated(f"The shelf life of the savepoint {saved.location}"):
            _ask_to_delete(saved.query, saved, OURSELVES, "its shelf life is over", is_here=False)
    since = now - timedelta(days=settings.WATCH_VERIFY_DAYS)
    for saved in kept.filter(verified_at__lt=since).order_by("verified_at"):
        if not QueryWork.objects.filter(query=saved.query, ended_at=None).exists():
            with isolated(f"The verification of the savepoint {saved.location}"):
                _ask_to_verify(saved.query, saved, OURSELVES, "the schedule", is_here=False)


def opened(query: WatchedQuery, *, output: str = "") -> tuple[Tree, QueryDirectory]:
    """Returns the query's directory. Raises Rejected if it is another query's by now."""
    roots = list(settings.WATCH_ROOTS)
    tree = tree_at(query.directory, roots)
    directory = read_query(query.directory, roots, output=output)
    if directory.query_id != query.query_id:
        raise Rejected(
            f"{query.directory} belongs to the query {directory.query_id or 'without an id'}, and"
            f" {query.name} is {query.query_id}; watch the other one under a name of its own."
        )
    return tree, directory


def newest_complete(directory: QueryDirectory) -> int:
    points = [each.batch_id for each in recovery_points(directory) if each.is_complete]
    if not points:
        raise Rejected(
            f"{directory.location} has no complete batch to copy; `manage.py watch check` says why."
        )
    return points[-1]


def _existing(row: QueryWork) -> QuerySavepoint:
    if row.savepoint is None or row.savepoint.deleted_at is not None:
        raise Rejected("The savepoint is gone.")
    return row.savepoint


def _digest(tree: Tree) -> str:
    digest = RunningDigest()
    digest.update(tree.read(MANIFEST) or b"")
    return digest.hexdigest()


def _until(days: float | None) -> datetime | None:
    if days is None:
        return None
    if not 0 < days <= KEEP_DAYS_MAX:
        raise Rejected(f"A shelf life is more than 0 and at most {KEEP_DAYS_MAX:,.0f} days.")
    return timezone.now() + timedelta(days=days)
