"""Aggregates per key and session of event time; a session is emitted when its gap has passed.

With an allowed lateness a session stays for that long after it was due: rows that come meanwhile
and grow it, or join it with another, emit it again, complete and with its new bounds; nothing takes
back what was emitted before. A row is late when it would be a closed session of its own and grows
no open one.

Source: Flink's `WindowOperator` with merging windows.
"""

from collections.abc import Mapping

import pyarrow as pa

from pipelines.operators.aggregates import Aggregate
from pipelines.operators.aggregation import Aggregation, check_distinct
from pipelines.operators.columns import check_event_time, in_slices
from pipelines.operators.keyed_time import KeyedTime
from pipelines.operators.lateness import LATE
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.session_entry import SessionEntry
from pipelines.operators.session_state import Sessions, SessionState
from pipelines.operators.side_output import SideOutput
from pipelines.operators.window_columns import (
    BOUNDS,
    WINDOW_START,
    bounded_schema,
    in_order,
    with_bounds,
)
from pipelines.operators.windows import SessionWindows


class SessionAggregate(Operator):
    """Emits keys, `window_start`, `window_end`, `window_time`, aggregates; by start, then key."""

    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: SessionWindows,
        aggregates: Mapping[str, Aggregate],
        lateness_ms: int = 0,
    ) -> None:
        self._keys = keys
        self._time_column = time_column
        self._gap_ms = windows.gap_ms
        self._aggregates = dict(aggregates)
        self._lateness_ms = lateness_ms

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        check_event_time(inputs[0], self._time_column)
        check_distinct([*self._keys, *BOUNDS, *self._aggregates])
        return bounded_schema(self._bind(inputs[0]).output_schema, len(self._keys))

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return {LATE: SideOutput(inputs[0], self._time_column)}

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._aggregation = self._bind(inputs[0])
        self._sessions = SessionState(
            self._aggregation, context.state, self._gap_ms, self._lateness_ms
        )
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
        self._sessions.add(in_time, times, self._aggregation.lift(in_time))
        if self._lateness_ms:
            self._emit_due()

    def on_watermark(self, timestamp_ms: int) -> None:
        self._entry.time.advance(timestamp_ms)
        self._emit_due()

    def _emit_due(self) -> None:
        due = self._sessions.take_due(self._entry.time)
        if due is not None and len(changed := due.changed()):
            self._emit(changed)

    def _emit(self, due: Sessions) -> None:
        results = with_bounds(
            self._aggregation.results(due.keys, due.accumulated),
            len(self._keys),
            due.first_ms,
            due.last_ms + self._gap_ms,
        )
        for piece in in_slices(in_order(results, (WINDOW_START, *self._keys))):
            self.context.collect(piece)

    def _bind(self, schema: pa.Schema) -> Aggregation:
        return Aggregation.of(self._keys, self._aggregates, schema)
