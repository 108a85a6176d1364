"""Joins each row of a stream to one row of a changing table: the version of its key at that time.

In event time, a row of the stream (port 0) waits until the watermark of both inputs has reached its
time. Then its version is known: the newest row of its key in the table (port 1) that is not later
than the row. If rows of a key have equal times, the last to arrive counts. Versions behind the
watermark are dropped, except the newest one of each key. In processing time, a row of the stream
takes the version that arrived last, at once.

Rows of the stream behind the watermark are late: they go to the side output `late_left`. Versions
behind it may have arrived after rows that they belong to. They go to `late_right`, but later rows
can still use them, unless the key has a newer version.

Source: Flink SQL's `TemporalRowTimeJoinOperator` and `TemporalProcessTimeJoinOperator`
(`FOR SYSTEM_TIME AS OF`). Flink joins late rows of the stream to the version that is left.
"""

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import (
    Longs,
    check_event_time,
    group,
    in_slices,
    longs,
    rows_with,
)
from pipelines.operators.event_time import KeyedTime
from pipelines.operators.joining.window_join import (
    LATE_SIDES,
    NO_SUFFIXES,
    JoinedColumns,
    JoinKind,
    Suffixes,
    has_null,
    late_sides,
)
from pipelines.operators.operator import Operator, OperatorContext, SideOutput
from pipelines.operators.windowing.window_aggregate import PaneRows
from pipelines.operators.windowing.windows import LATE_RECORDS, with_time, without_late
from pipelines.state.backend import NO_ROW, Rows, StateBackend, TableDescriptor
from pipelines.state.descriptors import check_table

_NO_VERSION = -1


class VersionTable:
    """Whole rows of the changing table; at most one for each value of `keys`."""

    def __init__(
        self,
        state: StateBackend,
        name: str,
        schema: pa.Schema,
        keys: tuple[str, ...],
        by: tuple[str, ...],
    ) -> None:
        self.table = state.table(version_descriptor(name, schema, keys, by))
        self._schema = schema
        self._keys = list(keys)

    def write(self, rows: pa.RecordBatch) -> None:
        """Writes rows; a row replaces an earlier one of equal keys."""
        numbers = self.table.rows_for(rows.select(self._keys))
        for name in self._schema.names:
            if name not in self._keys:
                self.table.write_arrow(name, numbers, rows.column(name))

    def rows(self, numbers: Rows) -> pa.RecordBatch:
        keys = self.table.keys(numbers)
        columns = [
            keys.column(name) if name in self._keys else self.table.read_arrow(name, numbers)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def of(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, Longs]:
        """Returns the rows of distinct keys, and the position of each one's key."""
        numbers = self.table.find(keys)
        is_known = numbers != NO_ROW
        return self.rows(numbers[is_known]), np.flatnonzero(is_known)

    def take_at_most(self, key_column: str, bound: int) -> pa.RecordBatch:
        """Removes and returns the rows whose key column is not above the bound."""
        numbers = self.table.select_at_most(key_column, bound)
        rows = self.rows(numbers)
        self.table.delete(numbers)
        return rows


def version_descriptor(
    name: str, schema: pa.Schema, keys: tuple[str, ...], by: tuple[str, ...]
) -> TableDescriptor:
    """Raises Rejected naming a column that state cannot hold."""
    key = pa.schema([schema.field(each) for each in keys])
    value = pa.schema([field for field in schema if field.name not in keys])
    descriptor = TableDescriptor(name, key, value, dict.fromkeys(value.names), by)
    check_table(descriptor)
    return descriptor


CURRENT = "current"
"""The state that holds the newest version of each key."""

VERSIONS = "versions"
"""The state that holds the versions ahead of the watermark."""

WAITING = "left"
"""The state that holds the rows whose version is not known yet."""


class TemporalJoin(Operator):
    """Emits all columns of the stream, then those of the table that are not keys."""

    def __init__(
        self, on: tuple[str, ...], kind: JoinKind, suffixes: Suffixes = NO_SUFFIXES
    ) -> None:
        self._on = on
        self._kind = kind
        self._suffixes = suffixes

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        if self._kind not in (JoinKind.INNER, JoinKind.LEFT):
            raise Rejected(
                f"A temporal join emits one row for each row of the stream, so it cannot be a"
                f" {self._kind} join. Choose inner or left."
            )
        schema = JoinedColumns.of(self._on, inputs[0], inputs[1], self._suffixes).schema
        version_descriptor(CURRENT, inputs[1], self._on, self._on)
        return schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._columns = JoinedColumns.of(self._on, inputs[0], inputs[1], self._suffixes)
        self._current = VersionTable(context.state, CURRENT, inputs[1], self._on, self._on)

    def _without_null_keys(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        is_null = has_null(rows, self._on)
        return rows_with(rows, ~is_null)

    def _emit(self, left: pa.RecordBatch, versions: pa.RecordBatch, chosen: Longs) -> None:
        """`chosen` is the position of each left row's version, or _NO_VERSION if it has none."""
        if self._kind is JoinKind.INNER:
            has_version = chosen != _NO_VERSION
            left, chosen = left.filter(pa.array(has_version)), chosen[has_version]
        positions = pa.array(chosen, mask=chosen == _NO_VERSION)
        for piece in in_slices(self._columns.pairs(left, versions.take(positions))):
            self.context.collect(piece)


class ProcessingTimeTemporalJoin(TemporalJoin):
    """Guarantee: a row is joined to the version of its key that arrived last before it."""

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        if port == 1:
            self._current.write(self._without_null_keys(batch))
            return
        groups = group(batch, list(self._on))
        versions, position = self._current.of(groups.keys)
        of_key = np.full(groups.count, _NO_VERSION, np.int64)
        of_key[position] = np.arange(len(position))
        self._emit(batch, versions, of_key[groups.index])


class EventTimeTemporalJoin(TemporalJoin):
    """Guarantee: a row that is not late is joined to the version of its key at its event time.

    It considers all versions that are not late, in whatever order the inputs arrive.
    """

    def __init__(
        self,
        on: tuple[str, ...],
        time_columns: tuple[str, str],
        kind: JoinKind,
        suffixes: Suffixes = NO_SUFFIXES,
    ) -> None:
        super().__init__(on, kind, suffixes)
        self._time_columns = time_columns

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        for schema, time_column in zip(inputs, self._time_columns, strict=True):
            check_event_time(schema, time_column)
        if self._time_columns[1] in self._on:
            raise Rejected(
                f"The table's event time {self._time_columns[1]!r} tells the versions of a key"
                " apart, so it cannot be a join column. Leave it out of on=."
            )
        return super().output_schema(inputs)

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return late_sides(inputs, self._time_columns)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        keys = (*self._on, self._time_columns[1])
        self._time = KeyedTime(context, self._on)
        self._versions = VersionTable(context.state, VERSIONS, inputs[1], keys, self._on)
        self._waiting = PaneRows(context.state, WAITING, inputs[0], self._on, self._time_columns[0])

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        rows, times = with_time(self.context, batch, self._time_columns[port])
        if port == 1:
            self._note_late(rows, times)
            self._versions.write(self._without_null_keys(rows))
            return
        rows, times = without_late(
            self.context, rows, times, times < self._time.of(rows), side=LATE_SIDES[0]
        )
        self._wait(rows, times)

    def on_watermark(self, timestamp_ms: int) -> None:
        """1. Take the rows and versions that are due. 2. Join. 3. Keep the newest versions."""
        self._time.advance(timestamp_ms)
        left = self._take_due(timestamp_ms)
        due = self._versions.take_at_most(self._time_columns[1], timestamp_ms)
        if left.num_rows or due.num_rows:
            self._join(left, due)

    def _join(self, left: pa.RecordBatch, due: pa.RecordBatch) -> None:
        groups = group(_keys_of([due, left], self._on), list(self._on))
        held, of_held = self._current.of(groups.keys)
        versions = pa.concat_batches([held, due])
        index = np.concatenate([of_held, groups.index])
        times = np.concatenate([self._times(1, versions), self._times(0, left)])
        chosen = versions_at(index, times, versions.num_rows)
        self._emit(left, versions, chosen)
        newest = newest_of_each(index[: versions.num_rows], times[: versions.num_rows])
        is_new = newest >= held.num_rows
        self._current.write(versions.take(pa.array(newest[is_new])))

    def _note_late(self, rows: pa.RecordBatch, times: Longs) -> None:
        is_late = times <= self._time.of(rows)
        if is_late.any():
            late = rows.filter(pa.array(is_late))
            self.context.count(LATE_RECORDS, late.num_rows)
            self.context.collect_side(LATE_SIDES[1], late)

    def _wait(self, rows: pa.RecordBatch, times: Longs) -> None:
        if self._kind is JoinKind.INNER:
            has_key = ~has_null(rows, self._on)
            rows, times = rows_with(rows, has_key), times[has_key]
        self._waiting.add(rows, panes_ahead(times, self._time.watermark_ms))

    def _take_due(self, watermark_ms: int) -> pa.RecordBatch:
        """Returns the rows that are due, in the order of their times; the others keep waiting."""
        rows = self._waiting.take_rows(watermark_ms)
        times = self._times(0, rows)
        waits = times > watermark_ms
        if waits.any():
            self._wait(rows.filter(pa.array(waits)), times[waits])
            rows, times = rows.filter(pa.array(~waits)), times[~waits]
        return rows.take(pa.array(np.argsort(times, kind="stable")))

    def _times(self, port: int, rows: pa.RecordBatch) -> Longs:
        return longs(rows.column(self._time_columns[port]))


def _keys_of(batches: list[pa.RecordBatch], on: tuple[str, ...]) -> pa.RecordBatch:
    """Returns the join columns of all batches, one after the other; their schemas differ."""
    columns = [pa.concat_arrays([batch.column(name) for batch in batches]) for name in on]
    return pa.RecordBatch.from_arrays(columns, names=list(on))


def versions_at(index: Longs, times: Longs, version_count: int) -> Longs:
    """Finds the version of each stream row: the newest of its key that is not later than the row.

    `index` and `times` give the key and time of each row: first all versions, in the order of their
    arrival, then the stream rows. Returns positions, or _NO_VERSION if there is none.

    1. Sort by key and time, versions before stream rows. 2. Let each row take the last version
    before it. 3. Drop a version of another key.
    """
    position = np.arange(len(index))
    is_version = position < version_count
    order = np.lexsort((position, times, index))
    latest = np.maximum.accumulate(np.where(is_version[order], np.arange(len(order)), -1))
    version = np.where(latest < 0, _NO_VERSION, order[latest])
    is_of_key = (latest >= 0) & (index[version] == index[order])
    chosen = np.full(len(index), _NO_VERSION, np.int64)
    chosen[order] = np.where(is_of_key, version, _NO_VERSION)
    return chosen[version_count:]


def newest_of_each(index: Longs, times: Longs) -> Longs:
    """Returns the position of the newest version of each key; among equal times, the last one."""
    order = np.lexsort((np.arange(len(index)), times, index))
    is_last = np.append(index[order][1:] != index[order][:-1], True)[: len(order)]
    return np.asarray(order[is_last])


def panes_ahead(times: Longs, watermark_ms: int) -> Longs:
    """Returns the pane in which each row waits: the farther ahead of the watermark, the wider.

    A pane begins behind the watermark only if one of its rows is due. So a row moves from pane to
    pane a logarithmic number of times, and there are few panes, however far the rows are ahead.
    """
    ahead = np.maximum(times - np.int64(watermark_ms), 1)
    _, exponents = np.frexp(ahead.astype(np.float64))
    shifts = np.maximum(exponents.astype(np.int64) - _PANE_BITS, 0)
    return np.asarray((times >> shifts) << shifts)


_PANE_BITS = 4
"""A row that is n ms ahead waits in a pane of at most n / 8 ms."""
