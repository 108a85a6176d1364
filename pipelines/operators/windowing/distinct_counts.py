"""Exact counts of distinct values in windows.

A table keeps each value of a key and window once, until the window is closed. A batch is first
reduced to its distinct values by key and pane. If windows overlap, each keeps its own values.
Sessions, which may still merge, keep their rows instead.

Source: Flink SQL's `COUNT(DISTINCT ...)` in window aggregations, with views of distinct values.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregating.aggregates import Aggregate, CountDistinct, mark_of
from pipelines.operators.aggregating.aggregation import Aggregation, check_distinct, fold
from pipelines.operators.columns import EVENT_TIME, Groups, Longs, field_of, group
from pipelines.operators.operator import OperatorContext
from pipelines.operators.ranking.deduplicate import firsts
from pipelines.operators.windowing.sessions import SessionRows
from pipelines.operators.windowing.window_aggregate import (
    TimeWindow,
    WindowAggregate,
)
from pipelines.operators.windowing.windows import (
    BOUNDS,
    WINDOW_START,
    SessionWindows,
    bounded_schema,
    with_bounds,
)
from pipelines.state.backend import Table, TableDescriptor
from pipelines.state.descriptors import StateDescriptor, check_table


def counted_columns(aggregates: Mapping[str, Aggregate]) -> list[str]:
    """The columns whose distinct values an aggregate counts, each once."""
    columns = [each.column for each in aggregates.values() if isinstance(each, CountDistinct)]
    return list(dict.fromkeys(columns))


class DistinctWindowAggregate(WindowAggregate):
    """Takes whole rows only, because a combined row has lost its values."""

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        for column in counted_columns(self._aggregates):
            check_table(self._descriptor_of(column, inputs[0]))
        return super().output_schema(inputs)

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._seen = {
            column: context.state.table(self._descriptor_of(column, inputs[0]))
            for column in counted_columns(self._aggregates)
        }
        self._counts = {
            column: [
                output.accumulators[0]
                for output in self._aggregation.outputs
                if _counts(self._aggregates[output.name], column)
            ]
            for column in self._seen
        }

    def _bind(self, schema: pa.Schema) -> Aggregation:
        return super()._bind(_with_mark_fields(schema, counted_columns(self._aggregates)))

    def _in_panes(self, rows: pa.RecordBatch, starts: Longs) -> pa.RecordBatch:
        """Adds marks that are all False, because `_add_values` counts the values."""
        windowed = super()._in_panes(rows, starts)
        none = pa.array(np.zeros(rows.num_rows, np.bool_))
        for column in self._seen:
            windowed = windowed.append_column(mark_of(column), none)
        return windowed

    def _add_values(self, panes: pa.RecordBatch) -> None:
        for column, seen in self._seen.items():
            new = _not_seen(self._values(panes, column), seen)
            groups = group(new, self._aggregation.key_names)
            counts = np.bincount(groups.index, minlength=groups.count)
            for accumulator in self._counts[column]:
                fold(self._open_windows, [accumulator], groups.keys, [counts])

    def _values(self, panes: pa.RecordBatch, column: str) -> pa.RecordBatch:
        """Returns the distinct values of each key and open window; a null is no value."""
        columns = [*self._aggregation.key_names, column]
        values = group(panes.filter(pc.is_valid(panes.column(column))), columns).keys
        if self._windows.is_tumbling:
            return values
        in_windows, _ = self._in_open_windows(values)
        return group(in_windows, columns).keys

    def _forget(self, newest_start: int) -> None:
        for seen in self._seen.values():
            seen.delete(seen.select_at_most(WINDOW_START, newest_start))

    def _descriptor_of(self, column: str, schema: pa.Schema) -> TableDescriptor:
        if column in (*self._keys, WINDOW_START):
            raise Rejected(f"{column!r} has one value in each window of a key; count another one.")
        keys = [field_of(schema, name) for name in self._keys]
        window = pa.field(WINDOW_START, EVENT_TIME)
        key = pa.schema([*keys, window, field_of(schema, column)])
        name = StateDescriptor(f"distinct-{column}").name
        return TableDescriptor(name, key, pa.schema([]), {}, self._keys)


class DistinctSessionAggregate(SessionRows):
    """Emits keys, the session and aggregates, sorted by start, then key; keeps rows until then."""

    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: SessionWindows,
        aggregates: Mapping[str, Aggregate],
        lateness_ms: int = 0,
    ) -> None:
        super().__init__(
            keys, time_column, windows, self._aggregate, pa.schema([]), lateness_ms=lateness_ms
        )
        self._aggregates = dict(aggregates)

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        self._check_input(inputs[0])
        check_distinct([*self._keys, *BOUNDS, *self._aggregates])
        return bounded_schema(self._bound(inputs[0]).output_schema, len(self._keys))

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        self._aggregation = self._bound(inputs[0])
        self._schema = self.output_schema(inputs)
        super().open(context, inputs)

    def _bound(self, schema: pa.Schema) -> Aggregation:
        marked = _with_mark_fields(schema, counted_columns(self._aggregates))
        return Aggregation.of(self._keys, self._aggregates, marked)

    def _aggregate(self, window: TimeWindow, rows: pa.RecordBatch) -> pa.RecordBatch:
        groups = Groups(
            rows.select(list(self._keys)).slice(0, 1), np.zeros(rows.num_rows, np.int64)
        )
        for column in counted_columns(self._aggregates):
            rows = rows.append_column(mark_of(column), _firsts_of(rows.column(column)))
        reduced = self._aggregation.reduce(self._aggregation.lift(rows), groups)
        results = self._aggregation.results(groups.keys, reduced)
        starts, ends = np.array([window.start_ms]), np.array([window.end_ms])
        return with_bounds(results, len(self._keys), starts, ends)


def _counts(aggregate: Aggregate, column: str) -> bool:
    return isinstance(aggregate, CountDistinct) and aggregate.column == column


def _with_mark_fields(schema: pa.Schema, columns: list[str]) -> pa.Schema:
    for column in columns:
        if mark_of(column) in schema.names:
            raise Rejected(f"The input has a column {mark_of(column)!r}; rename it.")
        schema = schema.append(pa.field(mark_of(column), pa.bool_()))
    return schema


def _not_seen(values: pa.RecordBatch, seen: Table) -> pa.RecordBatch:
    """Adds values to the table; returns those that were not in it."""
    _, is_new = seen.enter(values)
    return values.filter(pa.array(is_new))


def _firsts_of(values: pa.Array) -> pa.Array:
    """True in the first row of each value; a null is no value."""
    encoded = values.dictionary_encode()
    marks = np.zeros(len(values), np.bool_)
    valid = np.flatnonzero(encoded.is_valid().to_numpy(zero_copy_only=False))
    codes = encoded.indices.drop_null().to_numpy()
    marks[valid[firsts(codes, len(encoded.dictionary))]] = True
    return pa.array(marks)
