"""Calls a function with all rows of each key and session of event time, when its gap has passed.

State: the rows, by pane, and the extents of the sessions. `session_operator` has the rules. Source:
Flink's `WindowOperator` with merging windows and a `ProcessWindowFunction`.
"""

import pyarrow as pa

from pipelines.operators.accumulators import Values
from pipelines.operators.aggregation import Aggregation
from pipelines.operators.columns import Longs, longs
from pipelines.operators.operator import OperatorContext
from pipelines.operators.pane_rows import PaneRows
from pipelines.operators.session_operator import SessionOperator
from pipelines.operators.session_runs import NO_RUN
from pipelines.operators.session_state import Sessions
from pipelines.operators.window_function import WindowCalls, WindowFunction
from pipelines.operators.windows import SessionWindows


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
