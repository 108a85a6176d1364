"""Joins of two streams without windows: of all rows, or of those within an interval of event time.

Without an interval, every row of either side is kept. With a time-to-live, in processing time, a
row is dropped that long after it arrived and finds no more partners; so the output is not the join
of all input. An outer join cannot have a time-to-live: it would not know if a row without partners
once had some. An inner join only ever adds rows. An outer join emits a row without a partner at
once, and retracts it when its first partner arrives. Its output has the column `row_kind`: `+I` for
an added row, and `-D` for a retracted one, equal in all other columns. Both inputs must be streams
that only add rows. Null equals nothing, as in SQL.

Within an interval, a pair is emitted when its second row arrives. A row is kept while a partner may
still arrive; once the watermark excludes that, the row is dropped. Rows behind the watermark are
late: they are counted, and go to the side outputs `late_left` and `late_right`.

Source: Flink SQL's `StreamingJoinOperator` and its `RowKind`; Flink's `IntervalJoinOperator` (inner
join, bounds included).
"""

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.operators.changelog import (
    DELETE,
    INSERT,
    changes,
    refuse_changelogs,
    with_row_kind,
)
from pipelines.operators.columns import (
    EVENT_TIME,
    Longs,
    check_event_time,
    group,
    in_slices,
    longs,
    rows_with,
    timestamps,
)
from pipelines.operators.event_time import KeyedTime
from pipelines.operators.joining.join_state import KeptSide, TimedSide
from pipelines.operators.joining.window_join import (
    LATE_SIDES,
    NO_SUFFIXES,
    SIDES,
    JoinedColumns,
    JoinKind,
    Suffixes,
    has_null,
    late_sides,
)
from pipelines.operators.operator import Operator, OperatorContext, SideOutput
from pipelines.operators.windowing.windows import with_time, without_late


class StreamJoin(Operator):
    """Guarantee: at any time, added minus retracted rows are the join of all input so far.

    Port 0 is left, port 1 right. A batch retracts rows before it adds any.
    """

    def __init__(
        self,
        on: tuple[str, ...],
        kind: JoinKind,
        ttl_ms: int | None = None,
        suffixes: Suffixes = NO_SUFFIXES,
    ) -> None:
        self._on = on
        self._suffixes = suffixes
        self._kind = kind
        self._ttl_ms = ttl_ms

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        if self._ttl_ms is not None:
            _check_ttl(self._ttl_ms, self._kind)
        joined = JoinedColumns.of(self._on, inputs[0], inputs[1], self._suffixes).schema
        if self._kind is JoinKind.INNER:
            return joined
        return with_row_kind(joined, "A side")

    def emits_changes(self, inputs: list[bool]) -> bool:
        refuse_changelogs(inputs)
        return self._kind is not JoinKind.INNER

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._columns = JoinedColumns.of(self._on, inputs[0], inputs[1], self._suffixes)
        self._schema = self.output_schema(inputs)
        self._sides = [
            KeptSide(context.state, side, schema, self._on, self._ttl_ms, context.now_ms)
            for side, schema in zip(SIDES, inputs, strict=True)
        ]

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """1. Retract rows that now get a partner. 2. Add pairs. 3. Add rows without a partner."""
        for side in self._sides:
            side.drop_expired()
        is_null = has_null(batch, self._on)
        keyed = rows_with(batch, ~is_null)
        if self._kind.keeps(1 - port):
            self._take_back(port, keyed)
        has_partner = np.zeros(batch.num_rows, np.bool_)
        of_keyed = np.flatnonzero(~is_null)
        for matches in self._sides[1 - port].match(keyed):
            has_partner[of_keyed[matches.positions]] = True
            own = keyed.take(pa.array(matches.positions))
            left, right = (own, matches.found) if port == 0 else (matches.found, own)
            self._emit(self._columns.pairs(left, right), INSERT)
        if self._kind.keeps(port):
            self._emit(self._columns.alone(port, batch.filter(pa.array(~has_partner))), INSERT)
        self._sides[port].add(keyed)

    def _take_back(self, port: int, keyed: pa.RecordBatch) -> None:
        """Retracts the other side's rows that get their first partners from this batch."""
        keys = group(keyed, list(self._on)).keys
        first_ones = keys.filter(pa.array(~self._sides[port].index.contains(keys)))
        for matches in self._sides[1 - port].match(first_ones):
            self._emit(self._columns.alone(1 - port, matches.found), DELETE)

    def _emit(self, rows: pa.RecordBatch, row_kind: str) -> None:
        if self._kind is not JoinKind.INNER:
            rows = changes(rows, row_kind, self._schema)
        for piece in in_slices(rows):
            self.context.collect(piece)


def _check_ttl(ttl_ms: int, kind: JoinKind) -> None:
    if kind is not JoinKind.INNER:
        raise Rejected(f"A {kind} join cannot forget rows; take an inner one, or no time-to-live.")
    if ttl_ms <= 0:
        raise Rejected(f"A time-to-live of {ttl_ms} ms cannot be; it must be positive.")


JOIN_TIME = "join_time"
"""The later of a pair's two event times, which is the event time of the pair."""

_BUCKETS = 8
"""State is dropped in this many steps; each bucket covers that part of the interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A right row's time minus its left row's is from `lower_ms` to `upper_ms`, both included."""

    lower_ms: int
    upper_ms: int

    def __post_init__(self) -> None:
        if self.lower_ms > self.upper_ms:
            raise Rejected(
                f"An interval from {self.lower_ms} ms to {self.upper_ms} ms holds nothing;"
                " the lower bound must not lie above the upper one."
            )

    @classmethod
    def of(cls, lower: timedelta, upper: timedelta) -> "Interval":
        """Raises Rejected if no time lies between the two bounds."""
        one = timedelta(milliseconds=1)
        return cls(lower // one, upper // one)

    @property
    def bucket_ms(self) -> int:
        return max(1, (self.upper_ms - self.lower_ms) // _BUCKETS)

    def partners(self, port: int, times_ms: Longs) -> tuple[Longs, Longs]:
        """Returns the earliest and latest times of the other side's partners for these rows."""
        if port == 0:
            return times_ms + self.lower_ms, times_ms + self.upper_ms
        return times_ms - self.upper_ms, times_ms - self.lower_ms

    def oldest_useful(self, port: int, watermark_ms: int) -> int:
        """Returns the time before which rows of this side find no partner among rows to come."""
        return watermark_ms + (-self.upper_ms if port == 0 else self.lower_ms)


class IntervalJoin(Operator):
    """Port 0 is left, port 1 right. Emits left columns, right non-key columns, and `join_time`."""

    def __init__(
        self,
        on: tuple[str, ...],
        time_columns: tuple[str, str],
        interval: Interval,
        suffixes: Suffixes = NO_SUFFIXES,
    ) -> None:
        self._on = on
        self._suffixes = suffixes
        self._time_columns = time_columns
        self._interval = interval

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        for schema, time_column in zip(inputs, self._time_columns, strict=True):
            check_event_time(schema, time_column)
        joined = JoinedColumns.of(self._on, inputs[0], inputs[1], self._suffixes).schema
        if JOIN_TIME in joined.names:
            raise Rejected(f"A side has a column {JOIN_TIME!r}, which the join adds; rename it.")
        return joined.append(pa.field(JOIN_TIME, EVENT_TIME))

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return late_sides(inputs, self._time_columns)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._columns = JoinedColumns.of(self._on, inputs[0], inputs[1], self._suffixes)
        self._schema = self.output_schema(inputs)
        self._time = KeyedTime(context, self._on)
        self._sides = [
            TimedSide(context.state, side, schema, self._on, time, self._interval.bucket_ms)
            for side, schema, time in zip(SIDES, inputs, self._time_columns, strict=True)
        ]

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """1. Drop rows that can have no partner. 2. Pair with the other side. 3. Keep the rows."""
        rows, times = with_time(self.context, batch, self._time_columns[port])
        rows, times = without_late(
            self.context, rows, times, times < self._time.of(rows), side=LATE_SIDES[port]
        )
        has_key = ~has_null(rows, self._on)
        rows, times = rows_with(rows, has_key), times[has_key]
        earliest, latest = self._interval.partners(port, times)
        for matches in self._sides[1 - port].index.match(rows, earliest, latest):
            self._emit(port, rows.take(pa.array(matches.positions)), matches.found)
        may_match = times >= self._interval.oldest_useful(port, self._time.watermark_ms)
        self._sides[port].add(rows_with(rows, may_match), times[may_match])

    def on_watermark(self, timestamp_ms: int) -> None:
        self._time.advance(timestamp_ms)
        if timestamp_ms > MIN_WATERMARK_MS:
            for port, side in enumerate(self._sides):
                side.drop_before(self._interval.oldest_useful(port, timestamp_ms))

    def _emit(self, port: int, own: pa.RecordBatch, found: pa.RecordBatch) -> None:
        left, right = (own, found) if port == 0 else (found, own)
        pairs = self._columns.pairs(left, right)
        times = np.maximum(
            longs(left.column(self._time_columns[0])), longs(right.column(self._time_columns[1]))
        )
        columns = [*pairs.columns, timestamps(times)]
        for piece in in_slices(pa.RecordBatch.from_arrays(columns, schema=self._schema)):
            self.context.collect(piece)
