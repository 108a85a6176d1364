"""Equi-joins of two streams within windows of event time: tumbling, sliding, or sessions.

Both sides are buffered until the watermark, the smaller one of the two inputs, makes a window due.
Then all due windows are joined at once, with the window as another key column. Every matching pair
counts. Null equals nothing, as in SQL. The output has all columns of the left side, then the right
ones that are not keys. Left rows without a match are counted, because an inner join loses them and
people want to know how many. An outer join emits rows without a partner when the window is due, so
it never retracts anything.

Rows of a key, on either side, that follow each other within the gap are one session. When it is
due, each of its left rows meets each of its right ones, so two rows may meet although they are
further apart than the gap. State: the extents of the sessions (`session_state`) and the rows of
both sides, by pane. A null key forms sessions and matches nothing.

Source: Flink's `JoinedStreams`, its `WindowJoinOperator`, and `EventTimeSessionWindows`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregating.aggregation import Aggregation, check_distinct
from pipelines.operators.columns import (
    Longs,
    check_event_time,
    field_of,
    in_slices,
    longs,
    single_batch,
)
from pipelines.operators.event_time import KeyedTime
from pipelines.operators.operator import Operator, OperatorContext, SideOutput
from pipelines.operators.windowing.sessions import NO_RUN, SessionEntry, Sessions, SessionState
from pipelines.operators.windowing.window_aggregate import PaneRows
from pipelines.operators.windowing.windows import (
    BOUNDS,
    LATE,
    AlignedWindows,
    SessionWindows,
    WindowEntry,
    Windows,
    bounded_schema,
    with_bounds,
)

SIDES = ("left", "right")
LATE_SIDES = tuple(f"{LATE}_{side}" for side in SIDES)
"""The side outputs for rows that arrive too late for a join."""


class JoinKind(StrEnum):
    """The side whose rows are emitted even without a partner; the other columns are then null."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"

    @classmethod
    def of(cls, name: str) -> "JoinKind":
        """Raises Rejected naming the kinds that exist."""
        if name not in list(cls):
            raise Rejected(f"There is no {name!r} join; choose one of {', '.join(cls)}.")
        return cls(name)

    def keeps(self, port: int) -> bool:
        return self is JoinKind.FULL or self == SIDES[port]


Suffixes = tuple[str, str]
"""The suffixes for the names of columns that both sides have: on the left, and on the right."""

NO_SUFFIXES: Suffixes = ("", "")


@dataclass(frozen=True, slots=True)
class JoinedColumns:
    """The columns of a join. `left` and `right` have the output names. Build it with `of`."""

    on: tuple[str, ...]
    left: pa.Schema
    right: pa.Schema  # without the keys
    schema: pa.Schema

    @classmethod
    def of(
        cls,
        on: tuple[str, ...],
        left: pa.Schema,
        right: pa.Schema,
        suffixes: Suffixes = NO_SUFFIXES,
    ) -> "JoinedColumns":
        """Raises Rejected naming a column that is missing, differs in type, or is on both sides."""
        for column in on:
            _check_comparable(column, left, right)
        shared = set(left.names) & set(right.names) - set(on)
        own = _renamed(left, shared, suffixes[0])
        added = _renamed([field for field in right if field.name not in on], shared, suffixes[1])
        schema = pa.schema([*own, *added])
        for name in schema.names:
            if schema.names.count(name) > 1:
                raise Rejected(
                    f"Both sides have a column {name!r}; rename one of them, or set suffixes, such"
                    ' as suffixes=("", "_right").'
                )
        return cls(on, own, added, schema)

    def output_name(self, left_column: str, left: pa.Schema) -> str:
        """Returns the name that a column of the left side has in the output."""
        return str(self.left.names[left.get_field_index(left_column)])

    def pairs(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Joins row i of `left` to row i of `right`."""
        return pa.RecordBatch.from_arrays([*left.columns, *self._added(right)], schema=self.schema)

    def alone(self, port: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Joins rows of the side `port` to nulls."""
        count = rows.num_rows
        if port == 0:
            columns = [*rows.columns, *(pa.nulls(count, field.type) for field in self.right)]
        else:
            own = [
                rows.column(field.name) if field.name in self.on else pa.nulls(count, field.type)
                for field in self.left
            ]
            columns = [*own, *self._added(rows)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _added(self, right: pa.RecordBatch) -> list[pa.Array]:
        return [right.column(name) for name in right.schema.names if name not in self.on]


def _renamed(fields: Iterable[pa.Field], shared: set[str], suffix: str) -> pa.Schema:
    return pa.schema(
        [each.with_name(each.name + suffix) if each.name in shared else each for each in fields]
    )


def late_sides(inputs: list[pa.Schema], times: tuple[str, str]) -> dict[str, SideOutput]:
    sides = zip(LATE_SIDES, inputs, times, strict=True)
    return {name: SideOutput(schema, time) for name, schema, time in sides}


def has_null(rows: pa.RecordBatch, columns: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """True where any of the columns is null: such a key equals no other, as in SQL."""
    nulls = np.zeros(rows.num_rows, np.bool_)
    for column in columns:
        if rows.column(column).null_count:
            nulls |= pc.is_null(rows.column(column)).to_numpy(zero_copy_only=False)
    return nulls


def _check_comparable(column: str, left: pa.Schema, right: pa.Schema) -> None:
    left_type, right_type = field_of(left, column).type, field_of(right, column).type
    if left_type != right_type:
        raise Rejected(
            f"The join column {column!r} is {left_type} on the left and {right_type} on the right;"
            " both sides must have the same type."
        )


_WINDOW = "__window"
_ROW = "__row_of_"


@dataclass(frozen=True, slots=True)
class DueRows:
    """Rows, each with its window. The start distinguishes a window from others of the same key."""

    rows: pa.RecordBatch
    starts: Longs
    ends: Longs

    def take(self, positions: Longs) -> "DueRows":
        return DueRows(
            self.rows.take(pa.array(positions)), self.starts[positions], self.ends[positions]
        )


def pairs_of(left: DueRows, right: DueRows, on: tuple[str, ...]) -> tuple[Longs, Longs]:
    """Returns the positions of all partners, in order of the left row, then of the right one.

    Only keys and positions go through the join, so the other columns may have any type.
    """
    if left.rows.num_rows == 0 or right.rows.num_rows == 0:
        return _NO_ROWS, _NO_ROWS
    left_keys, right_keys = _keys_of(left, on, "left"), _keys_of(right, on, "right")
    pairs = left_keys.join(right_keys, [*on, _WINDOW], join_type="inner", use_threads=False)
    left_rows = longs(single_batch(pairs).column(_ROW + "left"))
    right_rows = longs(single_batch(pairs).column(_ROW + "right"))
    order = np.lexsort((right_rows, left_rows))
    return left_rows[order], right_rows[order]


def others(positions: Longs, count: int) -> Longs:
    """Returns the positions below `count` that are not among these."""
    is_other = np.ones(count, np.bool_)
    is_other[positions] = False
    return np.flatnonzero(is_other)


def _keys_of(due: DueRows, on: tuple[str, ...], side: str) -> pa.Table:
    keys = pa.Table.from_batches([due.rows.select(list(on))])
    numbered = keys.append_column(_ROW + side, pa.array(np.arange(due.rows.num_rows)))
    return numbered.append_column(_WINDOW, pa.array(due.starts))


_NO_ROWS: Longs = np.empty(0, np.int64)


UNMATCHED_LEFT = "unmatched_left"


class WindowedJoin(Operator):
    """Port 0 is left, port 1 right. Emits left columns, then right columns that are not keys.

    The window's bounds follow if they are asked for, and in all joins but an inner one within
    tumbling windows: a row's own event time may then be null, or lie after the window's end.
    """

    def __init__(
        self,
        on: tuple[str, ...],
        time_columns: tuple[str, str],
        kind: JoinKind,
        *,
        has_bounds: bool,
        suffixes: Suffixes = NO_SUFFIXES,
    ) -> None:
        self._on = on
        self._suffixes = suffixes
        self._time_columns = time_columns
        self._kind = kind
        self._has_bounds = has_bounds

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        for schema, time_column in zip(inputs, self._time_columns, strict=True):
            check_event_time(schema, time_column)
        joined = JoinedColumns.of(self._on, inputs[0], inputs[1], self._suffixes).schema
        if not self._has_bounds:
            return joined
        check_distinct([*joined.names, *BOUNDS])
        return bounded_schema(joined, len(joined))

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return late_sides(inputs, self._time_columns)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._columns = JoinedColumns.of(self._on, inputs[0], inputs[1], self._suffixes)

    def _join(self, left: DueRows, right: DueRows) -> None:
        """Joins all rows of the due windows."""
        left_rows, right_rows = pairs_of(left, right, self._on)
        paired = left.take(left_rows)
        self._emit(self._columns.pairs(paired.rows, right.rows.take(right_rows)), paired)
        alone = left.take(others(left_rows, left.rows.num_rows))
        if alone.rows.num_rows:
            self.context.count(UNMATCHED_LEFT, alone.rows.num_rows)
        if self._kind.keeps(0):
            self._emit(self._columns.alone(0, alone.rows), alone)
        if self._kind.keeps(1):
            alone = right.take(others(right_rows, right.rows.num_rows))
            self._emit(self._columns.alone(1, alone.rows), alone)

    def _emit(self, rows: pa.RecordBatch, windows: DueRows) -> None:
        if self._has_bounds:
            rows = with_bounds(rows, rows.num_columns, windows.starts, windows.ends)
        for piece in in_slices(rows):
            self.context.collect(piece)


def has_bounds(windows: Windows, kind: JoinKind) -> bool:
    """True if the columns that name the window are part of the output."""
    return kind is not JoinKind.INNER or not windows.is_tumbling


@dataclass(frozen=True, slots=True)
class _Side:
    entry: WindowEntry
    buffered: PaneRows  # has each row once for each window to which it belongs

    def take_due(self, newest_due: int) -> DueRows:
        """Removes and returns the rows of all due windows."""
        panes = self.buffered.take(newest_due)
        counts = [sum(batch.num_rows for batch in batches) for batches in panes.values()]
        starts = np.repeat(np.array(list(panes), np.int64), counts)
        rows = self.buffered.joined(panes.values())
        return DueRows(rows, starts, starts + self.entry.windows.size_ms)


class WindowJoin(WindowedJoin):
    def __init__(
        self,
        on: tuple[str, ...],
        time_columns: tuple[str, str],
        windows: AlignedWindows,
        kind: JoinKind = JoinKind.INNER,
        *,
        names_window: bool = False,
        suffixes: Suffixes = NO_SUFFIXES,
    ) -> None:
        bounds = names_window or has_bounds(windows, kind)
        super().__init__(on, time_columns, kind, has_bounds=bounds, suffixes=suffixes)
        self._windows = windows

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._sides = [self._open_side(port, schema) for port, schema in enumerate(inputs)]

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        side = self._sides[port]
        side.buffered.add(*side.entry.admit_to_windows(batch))

    def on_watermark(self, timestamp_ms: int) -> None:
        for side in self._sides:
            side.entry.time.advance(timestamp_ms)
        newest_due = self._windows.newest_due(timestamp_ms)
        self._join(*(side.take_due(newest_due) for side in self._sides))

    def _open_side(self, port: int, schema: pa.Schema) -> _Side:
        context, time_column = self.context, self._time_columns[port]
        time = KeyedTime(context, self._on)
        entry = WindowEntry(self._windows, time_column, context, time, side=LATE_SIDES[port])
        rows = PaneRows(context.state, SIDES[port], schema, self._on, time_column)
        return _Side(entry, rows)


class SessionJoin(WindowedJoin):
    def __init__(
        self,
        on: tuple[str, ...],
        time_columns: tuple[str, str],
        windows: SessionWindows,
        kind: JoinKind = JoinKind.INNER,
        *,
        names_window: bool = False,
        suffixes: Suffixes = NO_SUFFIXES,
    ) -> None:
        bounds = names_window or has_bounds(windows, kind)
        super().__init__(on, time_columns, kind, has_bounds=bounds, suffixes=suffixes)
        self._gap_ms = windows.gap_ms

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        keys = pa.schema([inputs[0].field(key) for key in self._on])
        self._sessions = SessionState(Aggregation(keys, ()), context.state, self._gap_ms, 0)
        self._time = KeyedTime(context, self._on)
        self._entries = [
            SessionEntry(
                sessions=self._sessions,
                time_column=column,
                gap_ms=self._gap_ms,
                context=context,
                time=self._time,
                side=side,
            )
            for column, side in zip(self._time_columns, LATE_SIDES, strict=True)
        ]
        sides = zip(SIDES, inputs, self._time_columns, strict=True)
        self._buffered = [PaneRows(context.state, n, s, self._on, t) for n, s, t in sides]

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        in_time, times = self._entries[port].admit(batch)
        if in_time.num_rows == 0:
            return
        self._sessions.add(in_time, times, [])
        self._keep(port, in_time, times)

    def on_watermark(self, timestamp_ms: int) -> None:
        self._time.advance(timestamp_ms)
        due = self._sessions.take_due(self._time)
        if due is not None and len(due):
            self._join(*(self._take(port, due) for port in range(len(SIDES))))

    def _take(self, port: int, due: Sessions) -> DueRows:
        """Removes and returns the rows of the due sessions; the others stay."""
        rows = self._buffered[port].take_rows(int(due.last_ms.max()))
        times = longs(rows.column(self._time_columns[port]))
        session = due.of_rows(rows, times)
        stays = session == NO_RUN
        self._keep(port, rows.filter(pa.array(stays)), times[stays])
        of = session[~stays]
        taken = rows.filter(pa.array(~stays))
        return DueRows(taken, due.first_ms[of], due.last_ms[of] + self._gap_ms)

    def _keep(self, port: int, rows: pa.RecordBatch, times_ms: Longs) -> None:
        self._buffered[port].add(rows, times_ms - times_ms % self._gap_ms)
