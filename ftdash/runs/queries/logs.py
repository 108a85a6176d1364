"""The log lines of a run for people: the newest, searched, or those around one line.

Reads the files that the run's driver keeps (`pipelines.bus.run_log`), 16 MB at most. It reads rows
of the database only for the run's name.
"""

from dataclasses import dataclass

from django.conf import settings

from ftdash.runs.queries.runs import run
from pipelines.bus.run_log import lines_from, newest_lines
from pipelines.domain.ids import RunId
from pipelines.domain.log_lines import LinePlace, LogLine, is_at_least
from pipelines.domain.run import RunDirectory

LINES_SHOWN = 200
BEFORE, AFTER = 50, 150
"""How many lines to show before one that a link names, and from it on."""


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Empty matches any. `text` is searched in message, logger and traceback, ignoring case."""

    text: str = ""
    level: str = ""
    subtask: str = ""

    def wants(self, line: LogLine) -> bool:
        if self.level and not is_at_least(line.level, self.level):
            return False
        if self.subtask and self.subtask.lower() not in line.subtask.lower():
            return False
        said = f"{line.message}\n{line.logger}\n{line.trace}".lower()
        return self.text.lower() in said


@dataclass(frozen=True, slots=True)
class ShownLine:
    place: str
    line: LogLine
    is_meant: bool  # the link names it


@dataclass(frozen=True, slots=True)
class LogLines:
    lines: list[ShownLine]  # in the order in which the driver kept them
    older: str  # the place before which the next older lines are; empty: there are none
    is_newest: bool  # nothing wanted comes after them, so far


def log_lines(
    pipeline: str,
    run_id: str,
    line_filter: LineFilter,
    *,
    before: LinePlace | None = None,
    at: LinePlace | None = None,
) -> LogLines:
    """`before` asks for the page of older lines; `at` for the line of a link and those around it.

    A run of another pipeline has no lines here.
    """
    found = run(run_id)
    if found is None or found.pipeline != pipeline:
        return LogLines([], "", True)
    directory = RunDirectory.of(settings.JOBS_ROOT, pipeline, RunId(run_id)).log
    if at is None:
        lines = newest_lines(directory, line_filter.wants, LINES_SHOWN, before)
        is_full = len(lines) == LINES_SHOWN
    else:
        lines = newest_lines(directory, line_filter.wants, BEFORE, at)
        is_full = len(lines) == BEFORE
        lines += lines_from(directory, line_filter.wants, AFTER, at)
    return LogLines(
        lines=[ShownLine(str(place), line, place == at) for place, line in lines],
        older=str(lines[0][0]) if is_full else "",
        is_newest=before is None and at is None,
    )
