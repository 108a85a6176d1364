"""Passes damage that the control plane finds in a point to the driver that may build on it.

Only to runs under way that the point belongs to: the run that wrote it, and a run that has claimed
it. The driver reads its points itself (`pipelines.bus.damage_notice`).
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db.models import Q

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Run
from pipelines.bus.damage_notice import report_damage
from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.status import ClaimMode

FOUND_BY = "control plane"

log = logging.getLogger("ftdash.damage")


def on_damage_found(path: str, problem: str) -> None:
    """Has each such driver read its points again, unless it has heard of this damage lately."""
    for run in _keepers_of(path):
        wall_ms = time.time_ns() // 1_000_000
        try:
            report_damage(run_directory(run), path, problem, found_by=FOUND_BY, wall_ms=wall_ms)
        except Retryable as error:
            log.warning("%s is damaged: %s", path, error)


@contextmanager
def passing_on_damage(path: str) -> Iterator[None]:
    """Passes on what the block finds in the point."""
    try:
        yield
    except CorruptSnapshot as error:
        on_damage_found(path, str(error))
        raise


def _keepers_of(path: str) -> Iterator[Run]:
    wrote = Q(checkpoint_rows__path=path)
    claimed = Q(restored_from=path, claim_mode=ClaimMode.CLAIM.value)
    runs = Run.objects.filter(wrote | claimed).select_related("pipeline").distinct()
    yield from (run for run in runs if not run.is_terminal)
