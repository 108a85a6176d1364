"""Base of joins within windows of event time: their columns, and what they emit.

When a window is due, its pairs are emitted, and in an outer join its rows without a partner.
Subclasses decide which rows are due, and in which window.

Source: Flink's `JoinedStreams` (`join(...).where(...).equalTo(...).window(...)`) and window joins.
"""

import pyarrow as pa

from pipelines.operators.aggregation import check_distinct
from pipelines.operators.columns import check_event_time, in_slices
from pipelines.operators.joined_columns import JoinedColumns, JoinKind, late_sides
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.paired_rows import DueRows, others, pairs_of
from pipelines.operators.side_output import SideOutput
from pipelines.operators.window_columns import BOUNDS, bounded_schema, with_bounds
from pipelines.operators.windows import Windows

UNMATCHED_LEFT = "unmatched_left"


class WindowedJoin(Operator):
    """Port 0 is left, port 1 right. Emits left columns, then right columns that are not keys.

    Unless it is an inner join within tumbling windows, the window's bounds follow: a row's own
    event time may then be null, or lie after the window's end.
    """

    def __init__(
        self,
        on: tuple[str, ...],
        time_columns: tuple[str, str],
        kind: JoinKind,
        *,
        has_bounds: bool,
    ) -> None:
        self._on = on
        self._time_columns = time_columns
        self._kind = kind
        self._has_bounds = has_bounds

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        for schema, time_column in zip(inputs, self._time_columns, strict=True):
            check_event_time(schema, time_column)
        joined = JoinedColumns.of(self._on, *inputs).schema
        if not self._has_bounds:
            return joined
        check_distinct([*joined.names, *BOUNDS])
        return bounded_schema(joined, len(joined))

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return late_sides(inputs, self._time_columns)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._columns = JoinedColumns.of(self._on, *inputs)

    def _join(self, left: DueRows, right: DueRows) -> None:
        """Joins all rows of the due windows."""
        left_rows, right_rows = pairs_of(left, right, self._on)
        paired = left.take(left_rows)
        self._emit(self._columns.pairs(paired.rows, right.rows.take(right_rows)), paired)
        alone = left.take(others(left_rows, left.rows.num_rows))
        if alone.rows.num_rows:
            self.context.count(UNMATCHED_LEFT, alone.rows.num_rows)
        if self._kind.keeps(0):
            self._emit(self._columns.alone(alone.rows), alone)
        if self._kind.keeps(1):
            alone = right.take(others(right_rows, right.rows.num_rows))
            self._emit(self._columns.alone(alone.rows), alone)

    def _emit(self, rows: pa.RecordBatch, windows: DueRows) -> None:
        if self._has_bounds:
            rows = with_bounds(rows, rows.num_columns, windows.starts, windows.ends)
        for piece in in_slices(rows):
            self.context.collect(piece)


def has_bounds(windows: Windows, kind: JoinKind) -> bool:
    """True if the columns that name the window are part of the output."""
    return kind is not JoinKind.INNER or not windows.is_tumbling
