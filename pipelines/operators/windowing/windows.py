"""Windows of event time: which windows a row belongs to, and when a window is due.

A window is named by its start, in milliseconds since the epoch, and covers [start, start + size).
Arithmetic gives the place of tumbling and sliding windows. A session is where its rows are, so
`session_state`, which holds them, decides what it covers. In the output, `window_start` and
`window_end` bound the window. `window_time`, its last millisecond, is the event time of a result
whose window may overlap others (Flink gives results that timestamp).

Source: Flink's `TumblingEventTimeWindows`, `SlidingEventTimeWindows`, `EventTimeSessionWindows` and
`EventTimeTrigger`.
"""

import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import EVENT_TIME, Longs, timestamps


@dataclass(frozen=True, slots=True)
class TumblingWindows:
    """Each row has one window. `offset_ms` moves all windows, such as to a time zone's midnight."""

    size_ms: int
    offset_ms: int = 0

    @property
    def slide_ms(self) -> int:
        return self.size_ms

    @property
    def pane_ms(self) -> int:
        """Rows within one pane share all their windows."""
        return math.gcd(self.size_ms, self.slide_ms)

    @property
    def is_tumbling(self) -> bool:
        """True if a window's start is enough to name it, and enough as its result's event time."""
        return True

    @property
    def overlap(self) -> bool:
        """True if a row may belong to several windows."""
        return self.slide_ms < self.size_ms

    def panes(self, times_ms: Longs) -> Longs:
        return _floor(times_ms, self.pane_ms, self.offset_ms)

    def newest_starts(self, times_ms: Longs) -> Longs:
        """The last window to which each row may belong."""
        return _floor(times_ms, self.slide_ms, self.offset_ms)

    def assign(self, times_ms: Longs) -> tuple[Longs, Longs]:
        """All pairs of a row (by its position) and one of its windows; a row's newest first."""
        newest = self.newest_starts(times_ms)
        count = -(-self.size_ms // self.slide_ms)
        rows = np.repeat(np.arange(len(times_ms)), count)
        back = np.tile(np.arange(count) * self.slide_ms, len(times_ms))
        starts = newest[rows] - back
        is_covered = times_ms[rows] < starts + self.size_ms
        return rows[is_covered], starts[is_covered]

    def newest_due(self, watermark_ms: int) -> int:
        """Windows that start at or before this have ended: nothing more can enter them."""
        return watermark_ms + 1 - self.size_ms


@dataclass(frozen=True, slots=True)
class SlidingWindows(TumblingWindows):
    """A window starts every `every_ms`; if that is less than the size, windows overlap."""

    every_ms: int = field(kw_only=True)

    @property
    def slide_ms(self) -> int:
        return self.every_ms

    @property
    def is_tumbling(self) -> bool:
        return False


AlignedWindows: TypeAlias = TumblingWindows | SlidingWindows


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Rows of one key that follow each other within the gap; the gap also ends a session."""

    gap_ms: int

    @property
    def is_tumbling(self) -> bool:
        return False

    @property
    def overlap(self) -> bool:
        return False


Windows: TypeAlias = AlignedWindows | SessionWindows

_NOTHING = timedelta()


def tumbling(
    size: timedelta = _NOTHING,
    /,
    *,
    days: int = 0,
    hours: int = 0,
    minutes: int = 0,
    seconds: int = 0,
    milliseconds: int = 0,
    offset: timedelta = _NOTHING,
) -> TumblingWindows:
    """Give a timedelta or units: what is given adds up. Raises Rejected unless it is positive."""
    size += timedelta(
        days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
    )
    return TumblingWindows(_positive_ms(size, "A window", "size"), _ms(offset))


def sliding(size: timedelta, *, every: timedelta, offset: timedelta = _NOTHING) -> SlidingWindows:
    """Windows of `size` that start `every` so often. Raises Rejected unless both are positive."""
    size_ms = _positive_ms(size, "A window", "size")
    return SlidingWindows(size_ms, _ms(offset), every_ms=_positive_ms(every, "A slide", "length"))


def session(
    gap: timedelta = _NOTHING,
    /,
    *,
    days: int = 0,
    hours: int = 0,
    minutes: int = 0,
    seconds: int = 0,
    milliseconds: int = 0,
) -> SessionWindows:
    """Sessions that end after this much silence, given as a timedelta or in units.

    Raises Rejected unless the gap is positive.
    """
    gap += timedelta(
        days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
    )
    return SessionWindows(_positive_ms(gap, "A session's gap", "length"))


def _floor(times_ms: Longs, width_ms: int, offset_ms: int) -> Longs:
    """The multiple of the width, moved by the offset, at or before each time; also below zero."""
    return times_ms - (times_ms - offset_ms) % width_ms


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _positive_ms(duration: timedelta, what: str, measure: str) -> int:
    length_ms = _ms(duration)
    if length_ms <= 0:
        raise Rejected(f"{what} of {length_ms} ms cannot be; its {measure} must be positive.")
    return length_ms


WINDOW_START = "window_start"
WINDOW_END = "window_end"
WINDOW_TIME = "window_time"
BOUNDS = (WINDOW_START, WINDOW_END, WINDOW_TIME)


def with_window(batch: pa.RecordBatch, starts: Longs) -> pa.RecordBatch:
    """Replaces an input column of that name, which comes from earlier windows."""
    others = batch.select([name for name in batch.schema.names if name != WINDOW_START])
    return others.append_column(pa.field(WINDOW_START, EVENT_TIME), timestamps(starts))


def with_bounds(
    results: pa.RecordBatch, key_count: int, starts: Longs, ends: Longs
) -> pa.RecordBatch:
    """Puts the three columns between the keys and the rest."""
    bounds = [timestamps(starts), timestamps(ends), timestamps(ends - 1)]
    columns = [*results.columns[:key_count], *bounds, *results.columns[key_count:]]
    return pa.RecordBatch.from_arrays(columns, schema=bounded_schema(results.schema, key_count))


def bounded_schema(schema: pa.Schema, key_count: int) -> pa.Schema:
    fields = list(schema)
    bounds = [pa.field(name, EVENT_TIME) for name in BOUNDS]
    return pa.schema([*fields[:key_count], *bounds, *fields[key_count:]])


def in_order(results: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Sorts, so that the same state is always emitted in the same order."""
    order = [(column, "ascending") for column in columns]
    return results.take(pc.sort_indices(results, sort_keys=order))
