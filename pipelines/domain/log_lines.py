"""One line of a run's log, as the driver keeps it and as pages show it. Pure.

A line is a JSON object. `subtask` says who wrote it: `orders[0]`, `slot 1` or `driver`.
"""

import re
from datetime import datetime

import msgspec

from pipelines.domain.ids import Attempt

DRIVER = "driver"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
TEXT_MAX = 8_000
"""The most characters of a message, and of a traceback; the rest is cut off."""

_PLACE = re.compile(r"([0-9]{1,9})-([0-9]{1,12})")


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    time: datetime  # UTC
    level: str
    subtask: str
    attempt: Attempt  # 0: the driver had not begun one
    logger: str
    message: str
    trace: str = ""  # of an exception


class LinePlace(msgspec.Struct, frozen=True, order=True):
    """Where a line is, which never changes: the number of its file and the byte it begins at."""

    file: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> "LinePlace | None":
        """Returns None if the text is no place."""
        match = _PLACE.fullmatch(text)
        return cls(int(match[1]), int(match[2])) if match else None

    def __str__(self) -> str:
        return f"{self.file}-{self.offset}"


def shortened(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def is_at_least(level: str, wanted: str) -> bool:
    """Compares levels; an author's own level counts as INFO."""
    return _rank(level) >= _rank(wanted)


def _rank(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else LEVELS.index("INFO")
