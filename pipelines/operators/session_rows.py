"""Calls a function with all rows of each key and session of event time, when its gap has passed.

State: the rows, by pane, beside the extents of the sessions (`session_state`).
Source: Flink's `WindowOperator` with merging windows and a `ProcessWindowFunction`.
"""

import numpy as np
import pyarrow as pa

from pipelines.operators.aggregation import Aggregation
from pipelines.operators.columns import Longs, by_value, check_event_time, field_of, longs
from pipelines.operators.grouping import group
from pipelines.operators.keyed_time import KeyedTime
from pipelines.operators.lateness import LATE
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.row_lists import row_list
from pipelines.operators.session_entry import SessionEntry
from pipelines.operators.session_runs import NO_RUN, Runs, run_at
from pipelines.operators.session_state import Sessions, SessionState
from pipelines.operators.side_output import SideOutput
from pipelines.operators.window_function import WindowCalls, WindowFunction
from pipelines.operators.windows import SessionWindows


class SessionRows(Operator):
    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: SessionWindows,
        function: WindowFunction,
        schema: pa.Schema,
        lateness_ms: int = 0,
    ) -> None:
        self._keys = keys
        self._time_column = time_column
        self._gap_ms = windows.gap_ms
        self._function = function
        self._schema = schema
        self._lateness_ms = lateness_ms

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        check_event_time(inputs[0], self._time_column)
        for key in self._keys:
            field_of(inputs[0], key)
        return self._schema

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return {LATE: SideOutput(inputs[0], self._time_column)}

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        keys = pa.schema([inputs[0].field(key) for key in self._keys])
        self._sessions = SessionState(
            Aggregation(keys, ()), context.state, self._gap_ms, self._lateness_ms
        )
        self._rows = context.state.batch_list(
            row_list("rows", inputs[0], self._keys, self._time_column)
        )
        self._calls = WindowCalls(self._function, self._schema, self._keys, context)
        self._entry = SessionEntry(
            self._sessions,
            self._time_column,
            self._gap_ms,
            context,
            KeyedTime(context, self._keys),
            self._lateness_ms,
        )

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        in_time, times = self._entry.admit(batch)
        if in_time.num_rows == 0:
            return
        self._sessions.add(in_time, times, [])
        self._append(in_time, times)
        if self._lateness_ms:
            self._call_for_due()

    def on_watermark(self, timestamp_ms: int) -> None:
        self._entry.time.advance(timestamp_ms)
        self._call_for_due()

    def _call_for_due(self) -> None:
        due = self._sessions.take_due(self._entry.time)
        if due is None or len(due) == 0:
            return
        rows = self._take(int(due.last_ms.max()))
        times = longs(rows.column(self._time_column))
        session = self._session_of(rows, times, due)
        is_due, is_called, stays = session != NO_RUN, session != NO_RUN, session == NO_RUN
        is_called[is_due] = due.is_changed[session[is_due]]
        stays[is_due] = ~due.is_closed[session[is_due]]
        called = session[is_called]
        starts, ends = due.first_ms[called], due.last_ms[called] + self._gap_ms
        self._calls.on_rows(rows.filter(pa.array(is_called)), starts, ends)
        self._append(rows.filter(pa.array(stays)), times[stays])

    def _session_of(self, rows: pa.RecordBatch, times: Longs, due: Sessions) -> Longs:
        names = list(self._keys)
        codes = group(pa.concat_batches([due.keys, rows.select(names)]), names).index
        none = np.empty(0, np.int64)
        runs = Runs(none, codes[: len(due)], due.first_ms, due.last_ms, none)
        return run_at(runs, codes[len(due) :], times, 0)

    def _append(self, rows: pa.RecordBatch, times: Longs) -> None:
        for pane, of_pane in by_value(rows, times - times % self._gap_ms):
            self._rows.append(pane, of_pane)

    def _take(self, newest_ms: int) -> pa.RecordBatch:
        panes = self._rows.namespaces_at_most(newest_ms)
        return pa.concat_batches([batch for pane in panes for batch in self._rows.pop(pane)])
