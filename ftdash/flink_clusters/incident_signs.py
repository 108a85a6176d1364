"""Finds what is wrong with a watched Flink cluster or one of its jobs, from known facts. Pure.

Each sign has a cause in the one table of causes and next steps, `ftdash.incidents.causes`; the
machine of incidents decides when one opens and when it is over.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from ftdash.flink_clusters.politeness import SILENT_AFTER, is_over
from ftdash.formats import count, duration, plural
from ftdash.incidents.causes import Cause
from ftdash.incidents.machine import Sign
from ftdash.metrics.load_rules import slow_checkpoints

MILLISECOND = timedelta(milliseconds=1)
RESTARTS_WITHIN = timedelta(minutes=10)
RESTARTS = 3
FAILED_IN_A_ROW = 3
LATE_AFTER_INTERVALS = 10
LATE_AFTER_MIN = timedelta(seconds=60)
GONE_FOR = timedelta(days=1)
"""After this long without a successor, a job that its cluster has lost is no longer news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSeen:
    now: datetime
    heard_at: datetime | None
    problem: str = ""  # of its newest look


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """The known facts about a job whose cluster answers.

    Only `completed_at` considers savepoints. `durations_ms` are those of completed checkpoints,
    oldest first. `failures_in_a_row` are Flink's words on the newest ones, the newest first, up to
    the first that completed. `interval_ms` is None if the job takes none by itself.
    """

    now: datetime
    state: str  # Flink's JobStatus
    started_at: datetime
    forgotten_at: datetime | None = None
    is_replaced: bool = False  # a later job has its name
    exception: str = ""  # the newest, with its place
    exception_count: int = 0  # within `RESTARTS_WITHIN`
    interval_ms: int | None = None
    completed_at: datetime | None = None
    durations_ms: Sequence[float] = ()
    under_way_ms: float | None = None
    failures_in_a_row: Sequence[str] = ()


def cluster_signs(seen: ClusterSeen) -> Iterator[Sign]:
    """The sign stands while a minute of looks has failed; one look that fails is no sign."""
    if not seen.problem or seen.heard_at is None or seen.now - seen.heard_at <= SILENT_AFTER:
        return
    ago = duration((seen.now - seen.heard_at) / MILLISECOND)
    yield _standing(seen.now, Cause.FLINK_SILENT, f"{seen.problem} It last answered {ago} ago.")


def job_signs(seen: JobSeen) -> Iterator[Sign]:
    """All signs stand: each one is the case now."""
    for cause, text in _found(seen):
        yield _standing(seen.now, cause, text)


def _standing(now: datetime, cause: Cause, text: str) -> Sign:
    return Sign(cause=cause, text=text, at_s=now.timestamp(), stands=True)


def _found(seen: JobSeen) -> Iterator[tuple[Cause, str]]:
    """A job that has ended, or that its cluster has lost, owes no checkpoint."""
    if seen.forgotten_at is not None:
        is_news = seen.now - seen.forgotten_at <= GONE_FOR
        if is_news and not (is_over(seen.state) or seen.is_replaced):
            yield Cause.FLINK_JOB_GONE, _gone(seen)
        return
    if is_over(seen.state):
        if seen.state == "FAILED" and not seen.is_replaced:
            yield Cause.FLINK_JOB_FAILED, seen.exception or "Flink names no exception."
        return
    if seen.exception_count >= RESTARTS:
        yield Cause.FLINK_RESTARTS, _restarts(seen)
    if len(seen.failures_in_a_row) >= FAILED_IN_A_ROW:
        yield Cause.FLINK_CHECKPOINTS_FAIL, _failing(seen.failures_in_a_row)
    if (slow := slow_checkpoints(seen.durations_ms, seen.under_way_ms)) is not None:
        yield Cause.FLINK_SLOW_CHECKPOINTS, slow.text
    if (late := _late(seen)) is not None:
        yield Cause.FLINK_NO_CHECKPOINT, late


def _gone(seen: JobSeen) -> str:
    newest = f" {seen.exception}" if seen.exception else ""
    return f"It was {seen.state.lower()} when the cluster last listed it.{newest}"


def _restarts(seen: JobSeen) -> str:
    minutes = RESTARTS_WITHIN // timedelta(minutes=1)
    failures = plural(seen.exception_count, "failure")
    return f"{failures} within {minutes} minutes; the newest: {seen.exception}"


def _failing(messages: Sequence[str]) -> str:
    newest = messages[0] or "Flink gave no reason."
    return f"{plural(len(messages), 'checkpoint')} failed one after the other; the newest: {newest}"


def _late(seen: JobSeen) -> str | None:
    """Compares with the interval, or with how long checkpoints take if that is longer."""
    if seen.interval_ms is None:
        return None
    usual_ms = max(seen.interval_ms, median(seen.durations_ms) if seen.durations_ms else 0)
    since = seen.now - (seen.completed_at or seen.started_at)
    if since <= max(LATE_AFTER_MIN, LATE_AFTER_INTERVALS * usual_ms * MILLISECOND):
        return None
    what = "The last one completed" if seen.completed_at else "None has completed; the job started"
    times = count(int(since / MILLISECOND / seen.interval_ms))
    return (
        f"{what} {duration(since / MILLISECOND)} ago, which is {times} times the interval of"
        f" {duration(seen.interval_ms)}."
    )
