"""Aggregates per key and session of event time; a session is emitted when its gap has passed.

State: the accumulators, with the extents of the sessions. `session_operator` has the rules.

Calls a function with all rows of each key and session of event time, when its gap has passed.

State: the rows, by pane, and the extents of the sessions. `session_operator` has the rules. Source:
Flink's `WindowOperator` with merging windows and a `ProcessWindowFunction`.
"""

from collections.abc import Mapping

import pyarrow as pa

from pipelines.operators.aggregating.aggregates import Aggregate, Values
from pipelines.operators.aggregating.aggregation import Aggregation, check_distinct
from pipelines.operators.columns import Longs, in_slices, longs
from pipelines.operators.operator import OperatorContext
from pipelines.operators.windowing.session_operator import SessionOperator
from pipelines.operators.windowing.session_state import NO_RUN, Sessions
from pipelines.operators.windowing.window_rows import PaneRows, WindowCalls, WindowFunction
from pipelines.operators.windowing.windows import (
    BOUNDS,
    WINDOW_START,
    SessionWindows,
    bounded_schema,
    in_order,
    with_bounds,
)


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
