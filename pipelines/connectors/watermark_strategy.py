"""How the event time of a split follows from its records, and when a silent split stops counting.

Every split has a generator of its own; the source sends the smallest watermark of its splits
downstream (`protocol.watermarks`). This module does not deal with clocks or splits. For sources
whose author declares a schema, it checks and reads the column of event times.

Source: Flink's `WatermarkStrategy`, `BoundedOutOfOrdernessWatermarks`, `WatermarksWithIdleness`.
The guard against leaps is ours.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected

Times = npt.NDArray[np.int64]

MAX_LEAP_MS = 365 * 24 * 3_600_000
"""How far event time may leap in one split before other records have to confirm the leap."""


class WatermarkGenerator(Protocol):
    """One per split, used by one thread; a recovery starts a new one."""

    def on_batch(self, batch: pa.RecordBatch, times_ms: Times) -> None:
        """`batch` holds the records handed out next, `times_ms` their event times."""
        ...

    def watermark_ms(self) -> int | None:
        """No record at or before this time follows in the split; None: not known yet."""
        ...


class BoundedOutOfOrderness:
    """Assumes that no record lies more than the bound behind the newest one before it.

    A leap is a time that exceeds the newest by more than `max_leap_ms`. It does not move event time
    by itself; otherwise one wrong timestamp would close every window. The generator believes it
    when most records of two batches in a row have leapt, and only counts those records until then.
    """

    def __init__(self, bound_ms: int, max_leap_ms: int | None) -> None:
        self._bound_ms = bound_ms
        self._max_leap_ms = max_leap_ms
        self._newest_ms: int | None = None
        self._leap_is_pending = False
        self.far_ahead_count = 0

    def on_batch(self, batch: pa.RecordBatch, times_ms: Times) -> None:
        newest_ms = int(times_ms.max())
        if self._max_leap_ms is not None:
            newest_ms = self._guarded(times_ms, newest_ms, self._max_leap_ms)
        self._newest_ms = newest_ms if self._newest_ms is None else max(self._newest_ms, newest_ms)

    def watermark_ms(self) -> int | None:
        return None if self._newest_ms is None else self._newest_ms - self._bound_ms - 1

    def _guarded(self, times_ms: Times, newest_ms: int, max_leap_ms: int) -> int:
        """Returns the newest time; a leap counts only once it is believed."""
        known_ms = int(np.median(times_ms)) if self._newest_ms is None else self._newest_ms
        if newest_ms <= known_ms + max_leap_ms:
            self._leap_is_pending = False
            return newest_ms
        has_leapt = times_ms > known_ms + max_leap_ms
        is_majority = np.count_nonzero(has_leapt) * 2 > len(times_ms)
        if is_majority and self._leap_is_pending:
            self._leap_is_pending = False
            return newest_ms
        self._leap_is_pending = bool(is_majority)
        self.far_ahead_count += int(np.count_nonzero(has_leapt))
        return int(times_ms[~has_leapt].max(initial=known_ms))


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """Immutable; safe to build in every process. `create` None means bounded out-of-orderness."""

    out_of_orderness_ms: int = 0
    idle_after_ms: int | None = None  # None: a silent split always holds event time back
    max_leap_ms: int | None = MAX_LEAP_MS
    create: Callable[[], WatermarkGenerator] | None = None

    def with_idleness(self, timeout: timedelta) -> "WatermarkStrategy":
        """A split that is silent for that long holds nothing back until it has records again."""
        return replace(self, idle_after_ms=_positive_ms(timeout, "idleness timeout"))

    def with_max_leap(self, leap: timedelta | None) -> "WatermarkStrategy":
        """Limits how far a single batch may move event time; None: no limit."""
        leap_ms = None if leap is None else _positive_ms(leap, "maximum leap")
        return replace(self, max_leap_ms=leap_ms)

    def generator(self) -> WatermarkGenerator:
        if self.create is not None:
            return self.create()
        return self.bounded()

    def bounded(self) -> BoundedOutOfOrderness:
        return BoundedOutOfOrderness(self.out_of_orderness_ms, self.max_leap_ms)


def bounded_out_of_orderness(bound: timedelta) -> WatermarkStrategy:
    """Records lie at most `bound` behind newer ones of their split, in event time."""
    bound_ms = bound // timedelta(milliseconds=1)
    if bound_ms < 0:
        raise Rejected(f"Records cannot be out of order by {bound_ms} ms; give 0 or more.")
    return WatermarkStrategy(out_of_orderness_ms=bound_ms)


def monotonous() -> WatermarkStrategy:
    """The event times of each split ascend."""
    return WatermarkStrategy()


def generated_by(create: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
    """An author's own generator; `create` makes one for each split and each attempt."""
    return WatermarkStrategy(create=create)


def _positive_ms(duration: timedelta, what: str) -> int:
    length_ms = duration // timedelta(milliseconds=1)
    if length_ms <= 0:
        raise Rejected(f"The {what} cannot be {length_ms} ms; it must be positive.")
    return length_ms


EVENT_TIME = pa.timestamp("ms", tz="UTC")


def check_event_time(schema: pa.Schema, column: str | None) -> None:
    """Raises Rejected if the column is missing or holds no time."""
    if column is None:
        return
    if column not in schema.names or schema.field(column).type != EVENT_TIME:
        raise Rejected(f"The event time column {column} must be a column of type {EVENT_TIME}.")


class NoEventTime(Rejected):
    """A record has no event time; `row` counts from 0 in the batch."""

    def __init__(self, sentence: str, row: int) -> None:
        super().__init__(sentence)
        self.row = row


def check_has_event_time(
    batch: pa.RecordBatch, column: str | None, place_of: Callable[[int], str]
) -> None:
    """Raises NoEventTime for the first record without time; `place_of` names a row's place."""
    if column is None or batch.column(column).null_count == 0:
        return
    row = batch.column(column).is_null().index(True).as_py()
    raise NoEventTime(f"{place_of(row)} has no {column}: no event time.", row)


def times_of_batch(batch: pa.RecordBatch, column: str) -> npt.NDArray[np.int64]:
    """Returns the event times of a batch, in milliseconds since 1970."""
    return np.asarray(batch.column(column).cast(pa.int64()))
