"""What a finding of damage says, in the words of every page. Pure."""

from dataclasses import dataclass

from ftdash.jobs.models import DamageFinding
from pipelines.domain.status import DamageFinder

_BY = {
    DamageFinder.VERIFICATION: "by a reading of all points",
    DamageFinder.CHECKPOINT: "by a checkpoint that was to refer to it",
    DamageFinder.RECOVERY: "by a recovery",
    DamageFinder.RESTORE: "by a slot that loaded its state",
}


@dataclass(frozen=True, slots=True)
class ToldDamage:
    what: str
    outcome: str


def told_of(row: DamageFinding) -> ToldDamage:
    if not row.files:
        return ToldDamage(f"{_named(row.mended)} whole again", _still(row.remembered_count))
    points = "1 point refers" if len(row.points) == 1 else f"{len(row.points)} points refer"
    return ToldDamage(
        f"{_named(row.files)} damaged, found {_BY[DamageFinder(row.found_by)]}",
        f"{points} to it; the next checkpoint writes the content again",
    )


def _named(files: list[str]) -> str:
    """With a verb; of many files only the first is named."""
    more = len(files) - 1
    if not more:
        return f"the shared file {files[0]} is"
    return f"the shared file {files[0]} and {more} more are"


def _still(count: int) -> str:
    return f"known to be damaged and left: {count}" if count else "no known damage is left"
