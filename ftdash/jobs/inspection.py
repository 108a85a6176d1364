"""Reads recovery points byte for byte, step by step: what a worker does of an inspection.

One step lasts about `STEP_S`; the row says where the next one begins, so that a step may be lost,
repeated or done twice at once. Who asks for an inspection, and what follows from it, is for
`point_services`.
"""

import logging
import time

from django.utils import timezone

from ftdash.jobs.models import PointInspection
from ftdash.jobs.validation import roots
from pipelines.domain.errors import Rejected, Retryable

STEP_S = 1.0

log = logging.getLogger("ftdash.inspection")


def go_on(inspection_key: int) -> bool:
    """Read on for one step; whether another one should follow."""
    row = PointInspection.objects.filter(pk=inspection_key, ended_at=None).first()
    if row is None:
        return False
    # Loads Arrow; most of what a worker does needs none.
    from pipelines.points.inspection import inspect
    from pipelines.storage.stores import CheckpointStores

    until_s = time.monotonic() + STEP_S
    store = CheckpointStores(roots(), max_memory_state_bytes=0)
    try:
        found = inspect(row.path, store, row.files_read, lambda: time.monotonic() >= until_s)
    except (Retryable, Rejected) as error:  # whoever still watches asks again after a while
        log.warning("%s cannot be inspected now: %s", row.path, error)
        return False
    now = timezone.now()
    as_it_was = PointInspection.objects.filter(pk=row.pk, ended_at=None, files_read=row.files_read)
    is_ours = as_it_was.update(
        files_read=found.files_read,
        files=found.files,
        bytes_read=found.bytes_read,
        bytes=found.bytes,
        problem=found.problem,
        moved_at=now,
        ended_at=now if found.is_over else None,
    )
    return bool(is_ours) and not found.is_over
