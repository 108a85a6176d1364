"""One line of the log, what it can be asked for, and where a page of it ends. Pure."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

FIRST_YEAR, LAST_YEAR = 1970, 2999
"""Beyond them no database could tell the moment in UTC."""

ROWS_MAX = 2**63


class LineKind(StrEnum):
    ACTION = "action"  # what a person asked for
    STATUS = "status"
    FAILURE = "failure"
    RECOVERY = "recovery"
    CHECKPOINT = "checkpoint"  # and savepoints
    REFUSAL = "refusal"  # of a damaged point, or of an attempt that is over
    DAMAGE = "damage"  # to files that checkpoints share
    OUTPUT = "output set aside"
    REPEATED = "output published again"
    CLEAN_UP = "clean-up"  # of output that was never committed
    TAKEOVER = "takeover"  # of a target that another installation's run held
    QUARANTINE = "quarantine"
    AUDIT = "audit"
    GAME_DAY = "game day"
    LAB = "lab"
    ALERT = "alert"
    SETTING = "setting"  # of people, tokens, alerts and retention


@dataclass(frozen=True, slots=True)
class Line:
    """`actor` is empty where nobody asked for it, `pipeline` where it concerns all."""

    at: datetime
    kind: LineKind
    what: str
    outcome: str
    pipeline: str
    run_id: str
    actor: str
    why: str
    source: int  # index in `sources.SOURCES`
    row: int


@dataclass(frozen=True, slots=True)
class Asked:
    """None: whatever it is. `since` is included, `until` is not."""

    pipeline: str | None = None
    kind: LineKind | None = None
    actor: str | None = None
    with_routine: bool = True  # checkpoints that are taken in passing, and go well
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last line of a page: what follows is older, or of its very moment and behind it."""

    at: datetime
    source: int
    row: int

    @classmethod
    def behind(cls, line: Line) -> "Cursor":
        return cls(line.at, line.source, line.row)

    @classmethod
    def parse(cls, text: str) -> "Cursor | None":
        """None for what is no cursor."""
        parts = text.split("~")
        try:
            at, source, row = datetime.fromisoformat(parts[0]), int(parts[1]), int(parts[2])
        except (ValueError, IndexError):
            return None
        is_possible = at.tzinfo is not None and FIRST_YEAR <= at.year <= LAST_YEAR
        return cls(at, source, row) if is_possible and 0 <= row < ROWS_MAX else None

    def __str__(self) -> str:
        return f"{self.at.isoformat()}~{self.source}~{self.row}"
