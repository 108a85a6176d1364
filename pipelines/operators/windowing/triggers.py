"""Triggers: when a window of event time fires before it ends.

A trigger is asked for many windows at once: for those to which a batch has added rows, and for all
open ones whenever event time or processing time passes a multiple of an interval. It keeps nothing
itself. What it has to remember are columns, one value for each key and window, which are part of
every snapshot. At its end a window fires by itself if it has changed since it fired last.

Source: Flink's `Trigger`, `ContinuousEventTimeTrigger`, `ContinuousProcessingTimeTrigger`,
`CountTrigger` and `PurgingTrigger`; asked by batch instead of by record.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntFlag
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import Longs


class TriggerResult(IntFlag):
    """What a window does: FIRE emits its result, PURGE forgets its rows."""

    CONTINUE = 0
    FIRE = 1
    PURGE = 2
    FIRE_AND_PURGE = 3


Results: TypeAlias = TriggerResult | npt.NDArray[np.integer]
"""One result for all windows, or one for each."""


@dataclass(frozen=True, slots=True)
class TriggerWindows:
    """Windows, each of one key, that a trigger is asked about. Every array has one value for each.

    `rows` counts the rows of a window since it was purged, `new_rows` those since it fired.
    """

    start_ms: Longs
    end_ms: Longs
    rows: Longs
    new_rows: Longs
    read: Callable[[str], Longs] = field(repr=False)
    write: Callable[[str, Longs], None] = field(repr=False)


class Trigger(ABC):
    """Decides when windows fire before they end. Keeps nothing but its columns.

    `columns`: {name: initial value}, integers that it keeps for each key and window, by
    `windows.read(name)` and `windows.write(name, values)`. `event_time_every`: event time asks
    again at each multiple of it; `processing_time_every`: so does the clock.
    """

    columns: Mapping[str, int] = {}
    event_time_every: timedelta | None = None
    processing_time_every: timedelta | None = None

    @abstractmethod
    def on_rows(self, windows: TriggerWindows) -> Results:
        """A batch has added rows to these windows, which have not ended."""

    def on_event_time(self, windows: TriggerWindows, watermark_ms: int) -> Results:
        """Event time has passed a multiple of `event_time_every`; these windows have begun."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, windows: TriggerWindows, now_ms: int) -> Results:
        """The clock has passed a multiple of `processing_time_every`; these are all windows."""
        return TriggerResult.CONTINUE


class _Continuous(Trigger):
    def on_rows(self, windows: TriggerWindows) -> Results:
        return TriggerResult.CONTINUE

    def on_event_time(self, windows: TriggerWindows, watermark_ms: int) -> Results:
        return _fire_where(windows.new_rows > 0)

    def on_processing_time(self, windows: TriggerWindows, now_ms: int) -> Results:
        return _fire_where(windows.new_rows > 0)


class _OfRows(Trigger):
    def __init__(self, number: int) -> None:
        self._number = number

    def on_rows(self, windows: TriggerWindows) -> Results:
        return _fire_where(windows.new_rows >= self._number)


class Purging(Trigger):
    """Made by `purging`."""

    def __init__(self, inner: Trigger) -> None:
        self._inner = inner
        self.columns = inner.columns
        self.event_time_every = inner.event_time_every
        self.processing_time_every = inner.processing_time_every

    def on_rows(self, windows: TriggerWindows) -> Results:
        return _purge_where_fired(self._inner.on_rows(windows))

    def on_event_time(self, windows: TriggerWindows, watermark_ms: int) -> Results:
        return _purge_where_fired(self._inner.on_event_time(windows, watermark_ms))

    def on_processing_time(self, windows: TriggerWindows, now_ms: int) -> Results:
        return _purge_where_fired(self._inner.on_processing_time(windows, now_ms))


def continuous_event_time(every: timedelta) -> Trigger:
    """Windows that have changed fire whenever event time passes a multiple of `every`."""
    trigger = _Continuous()
    trigger.event_time_every = _checked(every)
    return trigger


def continuous_processing_time(every: timedelta) -> Trigger:
    """Windows that have changed fire whenever the clock passes a multiple of `every`."""
    trigger = _Continuous()
    trigger.processing_time_every = _checked(every)
    return trigger


def count_trigger(rows: int) -> Trigger:
    """A window fires when it has at least so many rows more than when it fired last.

    It is asked after each batch, so it fires once for a batch that brings many times that number.
    """
    if rows < 1:
        raise Rejected(f"A window cannot fire every {rows} rows; give a number of at least 1.")
    return _OfRows(rows)


def purging(trigger: Trigger) -> Trigger:
    """The same, but a window that fires forgets its rows: results of one window add up."""
    return Purging(trigger)


def _checked(every: timedelta) -> timedelta:
    if every < timedelta(milliseconds=1):
        raise Rejected(f"A window cannot fire every {every}; give at least a millisecond.")
    return every


def _fire_where(fires: npt.NDArray[np.bool_]) -> npt.NDArray[np.integer]:
    return np.where(fires, int(TriggerResult.FIRE), int(TriggerResult.CONTINUE))


def _purge_where_fired(results: Results) -> npt.NDArray[np.integer]:
    given = np.asarray(results, np.int64)
    purge = np.int64(TriggerResult.PURGE)
    return np.where(given & np.int64(TriggerResult.FIRE), given | purge, given)
