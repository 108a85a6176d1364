"""Comparisons of two savepoints: requested, carried out by a worker, and stored in a row.

Savepoints never change, so findings stay true; a new request after a problem starts over.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from django.utils import timezone

from ftdash.errands import Errand, publish_on_commit
from ftdash.jobs.models import PointComparison
from ftdash.jobs.validation import check_place
from ftdash.points.services.room import check_room
from pipelines.domain.errors import Rejected
from pipelines.domain.point_contents import StateDifference

STALLED_AFTER = timedelta(seconds=30)
"""A part of a comparison may take a while, without any report."""


@dataclass(frozen=True, slots=True)
class Comparison:
    requester: str
    asked_at: datetime
    ended_at: datetime | None
    parts_done: int
    parts: int | None  # None: not known yet
    states: list[StateDifference]
    problem: str
    waiting_for: str  # why it cannot go on now; it is tried again while a person watches

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
    check_room(PointComparison.objects.all(), "comparisons")
    now = timezone.now()
    fresh = {"requester": requester, "asked_at": now, "moved_at": now}
    row, is_new = PointComparison.objects.get_or_create(left=left, right=right, defaults=fresh)
    if row.problem:
        PointComparison(pk=row.pk, left=left, right=right, **fresh).save(force_update=True)
        is_new = True
    if is_new:
        publish_on_commit(Errand.COMPARE_POINTS, row.pk)


def compared_with(right: str) -> list[str]:
    """Paths of the savepoints that `right` was, or is being, compared with; newest first."""
    rows = PointComparison.objects.filter(right=right).order_by("-asked_at")
    return list(rows.values_list("left", flat=True))


def comparison_of(left: str, right: str) -> Comparison | None:
    """Its progress; a stalled comparison is resumed. None: there was no request."""
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
