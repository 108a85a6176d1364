"""Where a run begins in a log when it restores nothing."""

from enum import StrEnum


class StartAt(StrEnum):
    OLDEST = "oldest"
    NEWEST = "newest"
