"""Joins two streams on equal columns, without windows: every row of either side is kept.

With a time-to-live, in processing time, a row is dropped that long after it came and finds no more
partners; so the output is not the join of all input. An outer join cannot have a time-to-live: it
would not know if a row without partners once had some.

An inner join only ever adds rows. An outer join emits a row without a partner at once, and retracts
it when its first partner comes. Its output has the column `row_kind`: `+I` for an added row, and
`-D` for a retracted one, equal in all other columns. Both inputs must be streams that only add
rows. Null equals nothing, as in SQL.

Source: Flink SQL's `StreamingJoinOperator` and its `RowKind`.
"""

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import group, in_slices
from pipelines.operators.joining.join_state import KeptSide
from pipelines.operators.joining.windowed_join import SIDES, JoinedColumns, JoinKind, has_null
from pipelines.operators.operator import Operator, OperatorContext

ROW_KIND = "row_kind"
INSERT, DELETE = "+I", "-D"


class StreamJoin(Operator):
    """Guarantee: at any time, added less retracted rows are the join of all input so far.

    Port 0 is left, port 1 right. A batch takes rows away before it adds any.
    """

    def __init__(self, on: tuple[str, ...], kind: JoinKind, ttl_ms: int | None = None) -> None:
        self._on = on
        self._kind = kind
        self._ttl_ms = ttl_ms

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        if self._ttl_ms is not None:
            _check_ttl(self._ttl_ms, self._kind)
        joined = JoinedColumns.of(self._on, *inputs).schema
        if self._kind is JoinKind.INNER:
            return joined
        if ROW_KIND in joined.names:
            raise Rejected(f"A side has a column {ROW_KIND!r}, which the join adds; rename it.")
        return joined.append(pa.field(ROW_KIND, pa.string()))

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._columns = JoinedColumns.of(self._on, *inputs)
        self._schema = self.output_schema(inputs)
        self._sides = [
            KeptSide(context.state, side, schema, self._on, self._ttl_ms, context.now_ms)
            for side, schema in zip(SIDES, inputs, strict=True)
        ]

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """1. Retract rows that had no partner until now. 2. Add pairs. 3. Add rows without one."""
        for side in self._sides:
            side.drop_expired()
        is_null = has_null(batch, self._on)
        keyed = batch.filter(pa.array(~is_null))
        if self._kind.keeps(1 - port):
            self._take_back(port, keyed)
        has_partner = np.zeros(batch.num_rows, np.bool_)
        of_keyed = np.flatnonzero(~is_null)
        for matches in self._sides[1 - port].match(keyed):
            has_partner[of_keyed[matches.asked]] = True
            own = keyed.take(pa.array(matches.asked))
            left, right = (own, matches.found) if port == 0 else (matches.found, own)
            self._emit(self._columns.pairs(left, right), INSERT)
        if self._kind.keeps(port):
            self._emit(self._columns.alone(batch.filter(pa.array(~has_partner))), INSERT)
        self._sides[port].add(keyed)

    def _take_back(self, port: int, keyed: pa.RecordBatch) -> None:
        """Retract rows of the other side for whose key this batch brings the first partners."""
        keys = group(keyed, list(self._on)).keys
        first_ones = keys.filter(pa.array(~self._sides[port].index.contains(keys)))
        for matches in self._sides[1 - port].match(first_ones):
            self._emit(self._columns.alone(matches.found), DELETE)

    def _emit(self, rows: pa.RecordBatch, row_kind: str) -> None:
        if self._kind is not JoinKind.INNER:
            kinds = pa.array([row_kind]).take(pa.array(np.zeros(rows.num_rows, np.int64)))
            rows = pa.RecordBatch.from_arrays([*rows.columns, kinds], schema=self._schema)
        for piece in in_slices(rows):
            self.context.collect(piece)


def _check_ttl(ttl_ms: int, kind: JoinKind) -> None:
    if kind is not JoinKind.INNER:
        raise Rejected(f"A {kind} join cannot forget rows; take an inner one, or no time-to-live.")
    if ttl_ms <= 0:
        raise Rejected(f"A time-to-live of {ttl_ms} ms cannot be; it must be positive.")
