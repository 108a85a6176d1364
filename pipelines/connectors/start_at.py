"""Where in a log a run begins if it restores nothing."""

from enum import StrEnum


class StartAt(StrEnum):
    OLDEST = "oldest"
    NEWEST = "newest"
