"""The standing of a watched query, from events that may come late, twice and in any order.

Pure: no clock, no rows. Guarantee: the same set of events gives the same standing, in any order and
any number of times. Each field is therefore a maximum: by time, and by id among equal times.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from ftdash.watching.progress import BatchFigures, Kind, QueryEvent

At = TypeVar("At", datetime, tuple[datetime, str])


class QueryState(StrEnum):
    RUNNING = "RUNNING"
    IDLE = "IDLE"  # it runs, and waits for input
    STALE = "STALE"  # it fell silent
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"  # only files are known, or nothing yet


SILENT_AFTER = timedelta(seconds=60)
"""A query that waits for input says so every 10 s, by Spark's default."""

_WORDS = {
    QueryState.RUNNING: "The query runs.",
    QueryState.IDLE: "The query runs and waits for input.",
    QueryState.STALE: "The query fell silent: its driver, the listener or the network may be down.",
    QueryState.FINISHED: "The query was stopped.",
    QueryState.FAILED: "The query failed.",
    QueryState.UNKNOWN: "Nothing reports whether the query runs.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The newest batch, for the fleet's page."""

    run_id: str
    figures: BatchFigures

    @property
    def order(self) -> tuple[datetime, str, int]:
        return self.figures.at, self.run_id, self.figures.batch_id


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStatus:
    """`sign` is the newest sign of life with its run; `end` the newest end of a run."""

    sign: tuple[datetime, str] | None = None
    idle: tuple[datetime, str] | None = None
    end: tuple[datetime, str] | None = None
    has_failed: bool = False  # the run of `end`
    last_committed_at: datetime | None = None
    data_moved_at: datetime | None = None
    reported: Newest | None = None
    filed: Newest | None = None  # of the files

    @property
    def run_id(self) -> str:
        return self.sign[1] if self.sign else ""

    @property
    def heard_at(self) -> datetime | None:
        return self.sign[0] if self.sign else None

    @property
    def newest(self) -> Newest | None:
        """The reported batch, which says more than files do, unless the files are ahead."""
        if self.reported is None or self.filed is None:
            return self.reported or self.filed
        is_ahead = self.filed.figures.batch_id > self.reported.figures.batch_id
        return self.filed if is_ahead else self.reported

    def after(self, event: QueryEvent) -> "QueryStatus":
        at_of_run = (event.at, event.run_id)
        status = replace(self, sign=_later(self.sign, at_of_run))
        match event.kind:
            case Kind.PROGRESS:
                return status._after_batch(event)
            case Kind.IDLE:
                return replace(status, idle=_later(self.idle, at_of_run))
            case Kind.TERMINATED:
                return status._after_end(event)
            case _:
                return status

    def after_files(self, figures: BatchFigures) -> "QueryStatus":
        """A batch that only the files of the query show: no sign that a driver lives."""
        return replace(
            self,
            filed=_newer(self.filed, Newest(run_id="", figures=figures)),
            last_committed_at=_later(self.last_committed_at, figures.ended_at),
            data_moved_at=_later(self.data_moved_at, figures.ended_at if figures.rows else None),
        )

    def state(self, now: datetime, silent_after: timedelta = SILENT_AFTER) -> QueryState:
        """`silent_after` is longer for a query whose triggers are far apart."""
        if self.sign is None:
            return QueryState.UNKNOWN
        heard_at, run_id = self.sign
        if self.end is not None and self.end[1] == run_id:
            return QueryState.FAILED if self.has_failed else QueryState.FINISHED
        if now - heard_at > silent_after:
            return QueryState.STALE
        if self.idle is not None and self.idle == self.sign:
            return QueryState.IDLE
        return QueryState.RUNNING

    def _after_batch(self, event: QueryEvent) -> "QueryStatus":
        if event.batch is None:
            return self
        moved = event.at if event.batch.rows else None
        return replace(
            self,
            reported=_newer(self.reported, Newest(run_id=event.run_id, figures=event.batch)),
            last_committed_at=_later(self.last_committed_at, event.at),
            data_moved_at=_later(self.data_moved_at, moved),
        )

    def _after_end(self, event: QueryEvent) -> "QueryStatus":
        end = (event.at, event.run_id)
        if self.end is not None and self.end > end:
            return self
        has_failed = event.exception is not None or (self.end == end and self.has_failed)
        return replace(self, end=end, has_failed=has_failed)


def words_of(state: QueryState) -> str:
    return _WORDS[state]


def _newer(one: Newest | None, other: Newest) -> Newest:
    return other if one is None or other.order > one.order else one


def _later(one: At | None, other: At | None) -> At | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)
