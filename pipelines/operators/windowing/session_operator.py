"""Operators over sessions of one input: each emits an aggregate or calls a function per session.

A session of a key is emitted when its gap has passed. State: the extents of the sessions
(`session_state`), with their accumulators or, by pane, their rows.

With an allowed lateness, a session stays for that long after it was due. If rows that come
meanwhile extend it or join it to another, it is emitted again, whole and with its new bounds;
nothing retracts what was emitted before. A row is late if it would be a closed session of its own
and extends no open one; for other windows see `lateness`.

Source: Flink's `WindowOperator` with merging windows and a `ProcessWindowFunction`.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipelines.operators.aggregating.aggregates import Aggregate, Values
from pipelines.operators.aggregating.aggregation import Aggregation, check_distinct
from pipelines.operators.columns import Longs, in_slices, longs
from pipelines.operators.event_time import KeyedTime
from pipelines.operators.operator import OperatorContext
from pipelines.operators.windowing.lateness import LATE, WindowOperator, with_time, without_late
from pipelines.operators.windowing.session_state import NO_RUN, Sessions, SessionState
from pipelines.operators.windowing.window_aggregate import PaneRows, WindowCalls, WindowFunction
from pipelines.operators.windowing.windows import (
    BOUNDS,
    WINDOW_START,
    SessionWindows,
    bounded_schema,
    in_order,
    with_bounds,
)


@dataclass(slots=True, kw_only=True)
class SessionEntry:
    sessions: SessionState
    time_column: str
    gap_ms: int
    context: OperatorContext
    time: KeyedTime
    lateness_ms: int = 0
    side: str = LATE  # the output for late rows

    def admit(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Longs]:
        """The rows that are on time, and the event time of each.

        A row that would be a closed session by itself may still extend an open one: Flink merges
        first, and then asks if the result is late.
        """
        rows, times = with_time(self.context, batch, self.time_column)
        is_late = times + self.gap_ms - 1 + self.lateness_ms <= self.time.of(rows)
        if is_late.any():
            suspects = rows.filter(pa.array(is_late))
            is_late[is_late] = ~self.sessions.touches_open(suspects, times[is_late])
        return without_late(self.context, rows, times, is_late, self.side)


class SessionOperator(WindowOperator):
    def __init__(
        self, keys: tuple[str, ...], time_column: str, windows: SessionWindows, lateness_ms: int
    ) -> None:
        super().__init__(keys, time_column, lateness_ms)
        self._gap_ms = windows.gap_ms

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._sessions = SessionState(
            self._accumulated(inputs[0]), context.state, self._gap_ms, self._lateness_ms
        )
        self._entry = SessionEntry(
            sessions=self._sessions,
            time_column=self._time_column,
            gap_ms=self._gap_ms,
            context=context,
            time=KeyedTime(context, self._keys),
            lateness_ms=self._lateness_ms,
        )

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        in_time, times = self._entry.admit(batch)
        if in_time.num_rows == 0:
            return
        self._sessions.add(in_time, times, self._take_in(in_time, times))
        if self._lateness_ms:
            self._give_out_due()

    def on_watermark(self, timestamp_ms: int) -> None:
        self._entry.time.advance(timestamp_ms)
        self._give_out_due()

    @abstractmethod
    def _accumulated(self, schema: pa.Schema) -> Aggregation:
        """What is kept per session and key in addition to the extent."""

    @abstractmethod
    def _take_in(self, rows: pa.RecordBatch, times_ms: Longs) -> list[Values]:
        """Keep rows that are on time; returns their accumulators."""

    @abstractmethod
    def _give_out(self, due: Sessions) -> None:
        """Handles due sessions: emits changed ones; closed ones will not come again."""

    def _give_out_due(self) -> None:
        due = self._sessions.take_due(self._entry.time)
        if due is not None and len(due):
            self._give_out(due)


class SessionAggregate(SessionOperator):
    """Emits keys, `window_start`, `window_end`, `window_time`, aggregates; by start, then key."""

    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: SessionWindows,
        aggregates: Mapping[str, Aggregate],
        lateness_ms: int = 0,
    ) -> None:
        super().__init__(keys, time_column, windows, lateness_ms)
        self._aggregates = dict(aggregates)

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        self._check_input(inputs[0])
        check_distinct([*self._keys, *BOUNDS, *self._aggregates])
        return bounded_schema(self._accumulated(inputs[0]).output_schema, len(self._keys))

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        self._aggregation = self._accumulated(inputs[0])
        super().open(context, inputs)

    def _accumulated(self, schema: pa.Schema) -> Aggregation:
        return Aggregation.of(self._keys, self._aggregates, schema)

    def _take_in(self, rows: pa.RecordBatch, times_ms: Longs) -> list[Values]:
        return self._aggregation.lift(rows)

    def _give_out(self, due: Sessions) -> None:
        changed = due.changed()
        results = with_bounds(
            self._aggregation.results(changed.keys, changed.accumulated),
            len(self._keys),
            changed.first_ms,
            changed.last_ms + self._gap_ms,
        )
        for piece in in_slices(in_order(results, (WINDOW_START, *self._keys))):
            self.context.collect(piece)


class SessionRows(SessionOperator):
    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: SessionWindows,
        function: WindowFunction,
        schema: pa.Schema,
        lateness_ms: int = 0,
    ) -> None:
        super().__init__(keys, time_column, windows, lateness_ms)
        self._function = function
        self._schema = schema

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        self._check_input(inputs[0])
        return self._schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._rows = PaneRows(context.state, "rows", inputs[0], self._keys, self._time_column)
        self._calls = WindowCalls(self._function, self._schema, self._keys, context)

    def _accumulated(self, schema: pa.Schema) -> Aggregation:
        return Aggregation(pa.schema([schema.field(key) for key in self._keys]), ())

    def _take_in(self, rows: pa.RecordBatch, times_ms: Longs) -> list[Values]:
        self._add(rows, times_ms)
        return []

    def _give_out(self, due: Sessions) -> None:
        rows = self._rows.take_rows(int(due.last_ms.max()))
        times = longs(rows.column(self._time_column))
        session = due.of_rows(rows, times)
        is_due, is_called, stays = session != NO_RUN, session != NO_RUN, session == NO_RUN
        is_called[is_due] = due.is_changed[session[is_due]]
        stays[is_due] = ~due.is_closed[session[is_due]]
        called = session[is_called]
        starts, ends = due.first_ms[called], due.last_ms[called] + self._gap_ms
        self._calls.on_rows(rows.filter(pa.array(is_called)), starts, ends)
        self._add(rows.filter(pa.array(stays)), times[stays])

    def _add(self, rows: pa.RecordBatch, times_ms: Longs) -> None:
        self._rows.add(rows, times_ms - times_ms % self._gap_ms)
