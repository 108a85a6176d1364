"""Reads recovery points byte for byte, step by step: the worker's part of an inspection.

One step lasts about `STEP_S`. The row says where the next step begins, so a step may be lost,
repeated or done twice at once. `points.services.restore` handles requests and results.

Limits how many long jobs run at once, because workers have other work too.
"""

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from ftdash.checkpoints.found_damage import on_damage_found
from ftdash.jobs.models import PointInspection
from ftdash.jobs.validation import roots
from pipelines.domain.errors import Rejected, Retryable

if TYPE_CHECKING:
    from django.db.models import QuerySet


STEP_S = 1.0


def go_on(inspection_key: int) -> bool:
    """Continue for one step; returns True if another one should follow."""
    row = PointInspection.objects.filter(pk=inspection_key, ended_at=None).first()
    if row is None:
        return False
    # Loads Arrow, which most of a worker's tasks do not need.
    from pipelines.points.inspection import inspect
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
"""No person looked and no worker continued for so long: the job no longer counts."""


def check_room(rows: "QuerySet[Any]", what: str) -> None:
    """`rows` have `ended_at` and `moved_at`. Raises Rejected if too many of them are open."""
    lately = timezone.now() - ABANDONED_AFTER
    if rows.filter(ended_at=None, moved_at__gt=lately).count() >= OPEN_MAX:
        raise Rejected(f"{OPEN_MAX} {what} are under way already; ask again when one has ended.")
