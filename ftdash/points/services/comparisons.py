"""The worker's long jobs on recovery points: comparing two, and reading one byte for byte.

A comparison is requested here and stored in a row; savepoints never change, so findings stay true,
and a new request after a problem starts over. `points.services.restore` handles requests for
inspections and their results. Both continue in steps of about `STEP_S`, or as long as one part
takes. The row says where the next step begins, so a step may be lost, repeated or done twice at
once. How many such jobs run at once is limited, because workers have other work too.
"""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from django.utils import timezone

from ftdash.errands import Errand, publish_on_commit
from ftdash.jobs.damage import on_damage_found, passing_on_damage
from ftdash.jobs.models import PointComparison, PointInspection, Run
from ftdash.jobs.validation import check_place, loaded_code, roots
from pipelines.domain.errors import Rejected, Retryable
from pipelines.points.contents import StateDifference

if TYPE_CHECKING:
    from django.db.models import QuerySet


STEP_S = 1.0


def go_on_inspecting(inspection_key: int) -> bool:
    """Continue for one step; returns True if another one should follow."""
    row = PointInspection.objects.filter(pk=inspection_key, ended_at=None).first()
    if row is None:
        return False
    # Loads Arrow, which most of a worker's tasks do not need.
    from pipelines.points.comparison import inspect
    from pipelines.storage.stores import CheckpointStores

    until_s = time.monotonic() + STEP_S
    store = CheckpointStores(roots(), max_memory_state_bytes=0)
    as_it_was = PointInspection.objects.filter(pk=row.pk, ended_at=None, files_read=row.files_read)
    try:
        found = inspect(row.path, store, row.files_read, lambda: time.monotonic() >= until_s)
    except Rejected as error:
        as_it_was.update(problem=str(error), moved_at=timezone.now(), ended_at=timezone.now())
        return False
    except Retryable as error:  # pages that still watch ask again after a while
        as_it_was.update(waiting_for=str(error), moved_at=timezone.now())
        return False
    if found.problem:
        on_damage_found(row.path, found.problem)
    now = timezone.now()
    is_ours = as_it_was.update(
        files_read=found.files_read,
        files=found.files,
        bytes_read=found.bytes_read,
        bytes=found.bytes,
        problem=found.problem,
        waiting_for="",
        moved_at=now,
        ended_at=now if found.is_over else None,
    )
    return bool(is_ours) and not found.is_over


OPEN_MAX = 4

ABANDONED_AFTER = timedelta(minutes=10)
"""If no person looked and no worker continued for this long, the job no longer counts."""


def check_free_space(rows: "QuerySet[Any]", what: str) -> None:
    """`rows` have `ended_at` and `moved_at`. Raises Rejected if too many of them are open."""
    lately = timezone.now() - ABANDONED_AFTER
    if rows.filter(ended_at=None, moved_at__gt=lately).count() >= OPEN_MAX:
        raise Rejected(f"{OPEN_MAX} {what} are under way already; ask again when one has ended.")


STALLED_AFTER = timedelta(seconds=30)
"""A part of a comparison may take a while, without any report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    requester: str
    asked_at: datetime
    ended_at: datetime | None
    parts_done: int
    parts: int | None  # None: not known yet
    states: list[StateDifference]
    problem: str
    waiting_for: str  # why it cannot continue now; it is tried again while a person watches

    @property
    def is_same(self) -> bool:
        return all(state.is_same for state in self.states)


def ask(left: str, right: str, requester: str) -> None:
    """Compares `left` with `right`, unless the result is known or under way.

    Raises Rejected if they are the same, are outside the storage, or if too many comparisons are
    under way.
    """
    if left == right:
        raise Rejected("Choose another savepoint: this one is compared with itself.")
    check_place(left)
    check_place(right)
    known = PointComparison.objects.filter(left=left, right=right).first()
    if known is not None and not known.problem:
        return
    check_free_space(PointComparison.objects.all(), "comparisons")
    now = timezone.now()
    fresh = {"requester": requester, "asked_at": now, "moved_at": now}
    row, is_new = PointComparison.objects.get_or_create(left=left, right=right, defaults=fresh)
    if row.problem:
        PointComparison(pk=row.pk, left=left, right=right, **fresh).save(force_update=True)
        is_new = True
    if is_new:
        publish_on_commit(Errand.COMPARE_POINTS, row.pk)


def compared_with(right: str) -> list[str]:
    """Returns the paths of savepoints that `right` was or is being compared with; newest first."""
    rows = PointComparison.objects.filter(right=right).order_by("-asked_at")
    return list(rows.values_list("left", flat=True))


def comparison_of(left: str, right: str) -> Comparison | None:
    """Returns its progress, or None if there was no request; resumes a stalled comparison."""
    row = PointComparison.objects.filter(left=left, right=right).first()
    if row is None:
        return None
    now = timezone.now()
    if row.ended_at is None and row.moved_at < now - STALLED_AFTER:
        PointComparison.objects.filter(pk=row.pk).update(moved_at=now)
        publish_on_commit(Errand.COMPARE_POINTS, row.pk)
    return Comparison(
        requester=row.requester,
        asked_at=row.asked_at,
        ended_at=row.ended_at,
        parts_done=row.parts_done,
        parts=row.parts,
        states=msgspec.convert(row.found, list[StateDifference]),
        problem=row.problem,
        waiting_for=row.waiting_for,
    )


GIVE_UP_AFTER = timedelta(minutes=5)
"""How long to retry after errors that may pass."""


def go_on_comparing(comparison_key: int) -> bool:
    """Continue for one step; returns True if another one should follow."""
    row = PointComparison.objects.filter(pk=comparison_key, ended_at=None).first()
    if row is None:
        return False
    try:
        with passing_on_damage(row.left), passing_on_damage(row.right):
            parts, done, found = _step(row)
    except Rejected as error:
        _move(row, problem=str(error), ended_at=timezone.now())
        return False
    except Retryable as error:
        _wait(row, str(error))
        return False
    is_over = done == parts
    is_ours = _move(
        row,
        parts=parts,
        parts_done=done,
        found=msgspec.to_builtins(found),
        waiting_for="",
        waiting_since=None,
        ended_at=timezone.now() if is_over else None,
    )
    return is_ours and not is_over


def _wait(row: PointComparison, why: str) -> None:
    """Notes why it waits. Pages that still watch ask again after a while."""
    now = timezone.now()
    since = row.waiting_since or now
    if now - since < GIVE_UP_AFTER:
        _move(row, waiting_for=why, waiting_since=since)
        return
    minutes = int((now - since) / timedelta(minutes=1))
    _move(row, problem=f"It could not continue for {minutes} min: {why}", ended_at=now)


def _step(row: PointComparison) -> tuple[int, int, list[StateDifference]]:
    """Returns the number of parts, how many are done, and the differences found so far."""
    # Loads Arrow, which most of a worker's tasks do not need.
    from pipelines.points.comparison import Point, difference_of, keys_of, parts_of
    from pipelines.storage.stores import CheckpointStores

    until_s = time.monotonic() + STEP_S
    store = CheckpointStores(roots(), max_memory_state_bytes=0)
    left, right = (Point(path, store.manifest(path)) for path in (row.left, row.right))
    parts = parts_of(left, right)
    written = right.manifest
    parameters, code = _parameters(written.run_id), loaded_code(written.code)
    keys = keys_of(written.pipeline, parameters, code)
    known = msgspec.convert(row.found, list[StateDifference])
    found = {(each.uid, each.state): each for each in known}
    done = row.parts_done
    for part in parts[done:]:
        more, name = difference_of(store, left, right, part, keys), (part.uid, part.state)
        found[name] = found[name].plus(more) if name in found else more
        done += 1
        if time.monotonic() >= until_s:
            break
    return len(parts), done, list(found.values())


def _parameters(run_id: str) -> dict[str, str]:
    """Returns the parameters of the run that wrote a point; none if it is not known here."""
    run = Run.objects.filter(run_id=run_id).first()
    return run.parameters if run else {}


def _move(row: PointComparison, **columns: object) -> bool:
    as_it_was = PointComparison.objects.filter(
        pk=row.pk, ended_at=None, asked_at=row.asked_at, parts_done=row.parts_done
    )
    return bool(as_it_was.update(moved_at=timezone.now(), **columns))
