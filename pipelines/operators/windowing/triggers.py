"""Triggers, which make a window fire before it ends, and the aggregates of windows that have one.

The operator asks a trigger about many windows at once: about those to which a batch has added rows,
and about all open ones whenever event time or processing time passes a multiple of an interval. A
trigger keeps nothing itself. Its memory is columns, one value for each key and window, which are
part of every snapshot. At its end a window fires by itself if it has changed since it last fired.

A window emits its whole result so far, so the newest row of a key and window is right: an upsert,
as with an allowed lateness. If the trigger purges, results of one window add up instead. Rows that
arrive within the allowed lateness make their windows fire at once, without the trigger.

Moments of event time follow from the watermark, and each window counts the rows that it has got
since it fired. So nothing fires again after a recovery unless it has changed.

Source: Flink's `Trigger`, `ContinuousEventTimeTrigger`, `ContinuousProcessingTimeTrigger`,
`CountTrigger` and `PurgingTrigger`; ours are asked by batch instead of by record.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import IntFlag
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.operators.aggregating.aggregates import Aggregate, Values, count
from pipelines.operators.columns import Longs, longs
from pipelines.operators.operator import OperatorContext
from pipelines.operators.windowing.window_aggregate import WindowAggregate
from pipelines.operators.windowing.windows import WINDOW_START, AlignedWindows
from pipelines.state.backend import Rows, TableDescriptor


class TriggerResult(IntFlag):
    """The action of a window: FIRE emits its result, PURGE forgets its rows."""

    CONTINUE = 0
    FIRE = 1
    PURGE = 2
    FIRE_AND_PURGE = 3


Results: TypeAlias = TriggerResult | npt.NDArray[np.integer]
"""One result for all windows, or one for each."""


@dataclass(frozen=True, slots=True)
class TriggerWindows:
    """The windows that a trigger is asked about, each of one key; arrays have one value for each.

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

    `columns`: {name: initial value}, integers that it keeps for each key and window, with
    `windows.read(name)` and `windows.write(name, values)`. The operator also asks the trigger when
    event time passes a multiple of `event_time_every`, or the clock one of `processing_time_every`.
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
    """A window fires when it has at least that many rows more than when it last fired.

    It is asked after each batch, so it fires once for a batch that brings many times that number.
    """
    if rows < 1:
        raise Rejected(f"A window cannot fire every {rows} rows; give a number of at least 1.")
    return _OfRows(rows)


def purging(trigger: Trigger) -> Trigger:
    """Works like `trigger`, but a window that fires forgets its rows, so its results add up."""
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


ROWS = "__rows"
"""The aggregate that counts the rows of a window; no result contains it."""

_NEW = "__new_rows"
_ONE_MS = timedelta(milliseconds=1)

Ask = Callable[[TriggerWindows], Results]


def with_row_count(aggregates: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    return {**aggregates, ROWS: count()}


class TriggeredAggregate(WindowAggregate):
    """Emits the same as `WindowAggregate`, but more often."""

    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: AlignedWindows,
        aggregates: Mapping[str, Aggregate],
        trigger: Trigger,
        lateness_ms: int = 0,
    ) -> None:
        super().__init__(keys, time_column, windows, with_row_count(aggregates), lateness_ms)
        self._trigger = trigger
        self._event_ms = _interval_ms(trigger.event_time_every)
        self._clock_ms = _interval_ms(trigger.processing_time_every)
        self._awaits_clock = False

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        schema = super().output_schema(inputs)
        return schema.remove(schema.get_field_index(ROWS))

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        collect = context.collect
        inner = replace(context, collect=lambda batch: collect(batch.drop_columns([ROWS])))
        super().open(inner, inputs)
        self._asked_ms = context.now_ms()

    def on_restored(self) -> None:
        self._awaits_clock = self._clock_ms is not None and len(self._open_windows) > 0

    def on_watermark(self, timestamp_ms: int) -> None:
        before_ms = self._entry.time.watermark_ms
        super().on_watermark(timestamp_ms)
        if self._event_ms is None or timestamp_ms >= MAX_WATERMARK_MS:
            return
        if timestamp_ms // self._event_ms > before_ms // self._event_ms:
            begun = self._not_due(self._at_most(timestamp_ms))
            self._ask(begun, lambda each: self._trigger.on_event_time(each, timestamp_ms))

    @property
    def awaits_processing_time(self) -> bool:
        return self._awaits_clock

    def on_processing_time(self, now_ms: int) -> None:
        if self._clock_ms is None or now_ms // self._clock_ms <= self._asked_ms // self._clock_ms:
            return
        self._asked_ms = now_ms
        self._awaits_clock = False
        every = self._not_due(self._at_most(MAX_WATERMARK_MS))
        self._ask(every, lambda each: self._trigger.on_processing_time(each, now_ms))

    def _on_folded(self, keys: pa.RecordBatch, reduced: list[Values]) -> None:
        rows = self._open_windows.rows_for(keys)
        new = self._read(_NEW, rows) + reduced[-1]
        self._open_windows.write(_NEW, rows, new)
        self._awaits_clock = self._clock_ms is not None
        starts = longs(keys.column(WINDOW_START))
        is_due = np.broadcast_to(self._entry.is_due(starts, keys), len(rows))
        self._emit(rows[is_due])
        self._ask(rows[~is_due], self._trigger.on_rows)

    def _ask(self, rows: Rows, ask: Ask) -> None:
        if len(rows) == 0:
            return
        results = np.broadcast_to(np.asarray(ask(self._shown(rows)), np.int64), len(rows))
        has_rows = self._read(self._counter, rows) > 0
        self._emit(rows[has_rows & _says(results, TriggerResult.FIRE)])
        self._purge(rows[_says(results, TriggerResult.PURGE)])

    def _shown(self, rows: Rows) -> TriggerWindows:
        start_ms = longs(self._open_windows.keys(rows).column(WINDOW_START))
        return TriggerWindows(
            start_ms=start_ms,
            end_ms=start_ms + self._windows.size_ms,
            rows=self._read(self._counter, rows),
            new_rows=self._read(_NEW, rows),
            read=lambda name: self._read(_column(name), rows),
            write=lambda name, values: self._open_windows.write(_column(name), rows, values),
        )

    def _emit(self, rows: Rows) -> None:
        super()._emit(rows)
        if len(rows):
            self._open_windows.write(_NEW, rows, np.zeros(len(rows), np.int64))

    def _purge(self, rows: Rows) -> None:
        if len(rows) == 0:
            return
        for accumulator in self._aggregation.accumulators:
            fresh = accumulator.to_arrow(np.full(len(rows), accumulator.identity))
            self._open_windows.write_arrow(accumulator.name, rows, fresh)
        self._open_windows.write(_NEW, rows, np.zeros(len(rows), np.int64))

    def _is_emitted(self, rows: Rows) -> Values:
        """True for windows that have got no rows since they fired."""
        return np.asarray(self._read(_NEW, rows) == 0)

    def _not_due(self, rows: Rows) -> Rows:
        if len(rows) == 0:
            return rows
        keys = self._open_windows.keys(rows)
        return np.asarray(rows[~self._entry.is_due(longs(keys.column(WINDOW_START)), keys)])

    def _read(self, column: str, rows: Rows) -> Longs:
        return self._open_windows.read(column, rows).astype(np.int64, copy=False)

    @property
    def _counter(self) -> str:
        return self._aggregation.accumulators[-1].name

    def _descriptor(self) -> TableDescriptor:
        descriptor = super()._descriptor()
        kept = {_NEW: 0, **{_column(name): value for name, value in self._trigger.columns.items()}}
        value = descriptor.value
        for name in kept:
            value = value.append(pa.field(name, pa.int64()))
        return replace(descriptor, value=value, defaults={**descriptor.defaults, **kept})


def _column(name: str) -> str:
    return f"__trigger__{name}"


def _says(results: npt.NDArray[np.int64], what: TriggerResult) -> npt.NDArray[np.bool_]:
    return np.asarray((results & np.int64(what)) != 0)


def _interval_ms(every: timedelta | None) -> int | None:
    return None if every is None else every // _ONE_MS
