"""Aggregates per key and session of event time; a session is emitted when its gap has passed.

State: the accumulators, with the extents of the sessions. `session_operator` has the rules.
"""

from collections.abc import Mapping

import pyarrow as pa

from pipelines.operators.accumulators import Values
from pipelines.operators.aggregates import Aggregate
from pipelines.operators.aggregation import Aggregation, check_distinct
from pipelines.operators.columns import Longs, in_slices
from pipelines.operators.operator import OperatorContext
from pipelines.operators.session_operator import SessionOperator
from pipelines.operators.session_state import Sessions
from pipelines.operators.window_columns import (
    BOUNDS,
    WINDOW_START,
    bounded_schema,
    in_order,
    with_bounds,
)
from pipelines.operators.windows import SessionWindows


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
