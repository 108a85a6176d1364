"""Words the damage found in a point for all pages, and reports it to the drivers concerned.

The control plane reports its findings only to runs under way that the point belongs to: the run
that wrote it, and a run that has claimed it. The driver reads its points itself
(`pipelines.bus.inbox`).
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db.models import Q

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import DamageFinding, Run
from pipelines.bus.inbox import report_damage
from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.status import ClaimMode, DamageFinder

_BY = {
    DamageFinder.VERIFICATION: "by a reading of all points",
    DamageFinder.CHECKPOINT: "by a checkpoint that was to refer to it",
    DamageFinder.RECOVERY: "by a recovery",
    DamageFinder.RESTORE: "by a slot that loaded its state",
}


@dataclass(frozen=True, slots=True)
class DamageText:
    what: str
    outcome: str


def text_of(row: DamageFinding) -> DamageText:
    if not row.files:
        return DamageText(f"{_named(row.mended)} whole again", _still(row.remembered_count))
    points = "1 point refers" if len(row.points) == 1 else f"{len(row.points)} points refer"
    return DamageText(
        f"{_named(row.files)} damaged, found {_BY[DamageFinder(row.found_by)]}",
        f"{points} to it; the next checkpoint writes the content again",
    )


def _named(files: list[str]) -> str:
    """Names the files, with a verb; of many files, only the first."""
    more = len(files) - 1
    if not more:
        return f"the shared file {files[0]} is"
    return f"the shared file {files[0]} and {more} more are"


def _still(count: int) -> str:
    return f"known to be damaged and left: {count}" if count else "no known damage is left"


FOUND_BY = "control plane"

log = logging.getLogger("ftdash.damage")


def on_damage_found(path: str, problem: str) -> None:
    """Has each driver concerned read its points again, unless it heard of this damage lately."""
    for run in _keepers_of(path):
        wall_ms = time.time_ns() // 1_000_000
        try:
            report_damage(run_directory(run), path, problem, found_by=FOUND_BY, wall_ms=wall_ms)
        except Retryable as error:
            log.warning("%s is damaged: %s", path, error)


@contextmanager
def passing_on_damage(path: str) -> Iterator[None]:
    """Passes on damage that the block finds in the point."""
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
