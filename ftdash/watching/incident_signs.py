"""Finds what is wrong with a watched query now, from the known facts. Pure.

Each sign has a cause in the one table of causes and next steps, `ftdash.incidents.causes`; the
machine of incidents decides when one opens and when it is over.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

import msgspec

from ftdash.formats import count, duration, plural
from ftdash.incidents.causes import Cause
from ftdash.incidents.machine import Sign
from ftdash.watching.query_status import QueryState

LATE_AFTER_INTERVALS = 10
LATE_AFTER_MIN = timedelta(seconds=60)
LAG_BATCHES = 12
"""This many batches in a row decide if the lag grows."""

LAG_GROWTH = 1.5


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person allows a query.

    If `late_after_s` or `lag_max` is None, it is judged by what is usual for the query. If
    `batch_max_s` is None, a batch may take as long as it takes.
    """

    late_after_s: float | None = None  # without a committed batch, while it has input
    lag_max: int | None = None  # records that wait in all sources together
    batch_max_s: float | None = None

    @property
    def words(self) -> str:
        """The limits in words; empty if there are none."""
        found = []
        if self.late_after_s is not None:
            found.append(f"{duration(1000 * self.late_after_s)} without a batch")
        if self.lag_max is not None:
            found.append(f"{count(self.lag_max)} records waiting")
        if self.batch_max_s is not None:
            found.append(f"{duration(1000 * self.batch_max_s)} for a batch")
        return ", ".join(found)


AS_USUAL = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The known facts about a query.

    `interval_ms` is the usual time from one batch to the next; None: not known. `batch_id` and
    `batch_ms` are of the newest batch. `lags` are the records that waited when the newest batches
    were planned, the newest first.
    """

    now: datetime
    state: QueryState
    failure: str = ""
    last_committed_at: datetime | None = None
    interval_ms: float | None = None
    batch_id: int | None = None
    batch_ms: int | None = None
    limits: Limits = AS_USUAL
    lags: Sequence[int] = ()
    damage: Sequence[str] = ()  # errors that the doctor found, as sentences
    altered: Sequence[str] = ()  # labels of savepoints that are not as they were written


def signs(seen: Seen) -> Iterator[Sign]:
    """All signs stand: each one is the case now."""
    for cause, text in _found(seen):
        yield Sign(cause=cause, text=text, at_s=seen.now.timestamp(), stands=True)


def _found(seen: Seen) -> Iterator[tuple[Cause, str]]:
    if seen.state is QueryState.FAILED:
        yield Cause.QUERY_FAILED, seen.failure or "The query ended with an exception."
    if (late := _late(seen)) is not None:
        yield Cause.QUERY_LATE, late
    if (behind := _behind(seen.lags, seen.limits.lag_max)) is not None:
        yield Cause.QUERY_BEHIND, behind
    if (slow := _slow(seen)) is not None:
        yield Cause.QUERY_SLOW, slow
    if seen.damage:
        more = f" and {plural(len(seen.damage) - 1, 'more error')}" if seen.damage[1:] else ""
        yield Cause.CHECKPOINT_DAMAGED, f"{seen.damage[0]}{more}"
    if seen.altered:
        labels = ", ".join(seen.altered[:3])
        yield Cause.SAVEPOINT_ALTERED, f"Not as written: {labels}."


def _late(seen: Seen) -> str | None:
    """A query that waits for input, or that ended, owes no batch."""
    if seen.state in (QueryState.IDLE, QueryState.FINISHED, QueryState.FAILED):
        return None
    if seen.last_committed_at is None:
        return None
    since = seen.now - seen.last_committed_at
    text = f"The last batch was committed {duration(since / timedelta(milliseconds=1))} ago"
    if seen.limits.late_after_s is not None:
        is_late = since.total_seconds() > seen.limits.late_after_s
        allowed = duration(1000 * seen.limits.late_after_s)
        return f"{text}, and {allowed} are allowed." if is_late else None
    if seen.interval_ms is None:
        return None
    usual = timedelta(milliseconds=seen.interval_ms)
    if since <= max(LATE_AFTER_MIN, LATE_AFTER_INTERVALS * usual):
        return None
    times = count(int(since / usual))
    return f"{text}, which is {times} times the usual {duration(seen.interval_ms)}."


def _behind(lags: Sequence[int], lag_max: int | None) -> str | None:
    if lag_max is None:
        return _growing(lags)
    if not lags or lags[0] <= lag_max:
        return None
    return f"{count(lags[0])} records wait, and {count(lag_max)} are allowed."


def _slow(seen: Seen) -> str | None:
    max_s = seen.limits.batch_max_s
    if max_s is None or seen.batch_ms is None or seen.batch_ms <= 1000 * max_s:
        return None
    took, allowed = duration(seen.batch_ms), duration(1000 * max_s)
    return f"Batch {seen.batch_id} took {took}, and {allowed} are allowed."


def _growing(lags: Sequence[int]) -> str | None:
    """Every batch of the newer half found more waiting than any of the older half."""
    if len(lags) < LAG_BATCHES:
        return None
    newest = lags[:LAG_BATCHES]
    newer, older = newest[: LAG_BATCHES // 2], newest[LAG_BATCHES // 2 :]
    if min(newer) <= max(older) or newer[0] < LAG_GROWTH * max(1.0, median(older)):
        return None
    return (
        f"{count(newer[0])} records wait, and {count(older[-1])} did {LAG_BATCHES} batches before;"
        " more comes than the query processes."
    )
