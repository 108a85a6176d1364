"""Windows of a number of rows: each key emits an aggregate of its newest rows every so many rows.

The rows of a key are numbered as they arrive. They fall into panes of gcd(size, slide) rows, which
have one row of state each. A window is complete at every multiple of the slide, and covers the
`size` rows before it, or all if the key has had fewer. A batch is first reduced by key and pane.
Panes that no later window covers are deleted.

A window that has not filled when the input ends is not emitted.

Source: Flink's `KeyedStream.countWindow`; its `CountEvictor` keeps every row instead.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.aggregating.aggregates import Aggregate, Values
from pipelines.operators.aggregating.aggregation import Aggregation
from pipelines.operators.columns import MAX_OUTPUT_ROWS, Groups, Longs, field_of, group
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.state.backend import NO_ROW, TableDescriptor

PANE = "__pane"
_ROWS = "rows"
_OLDEST = "oldest"
MERGED_MAX = 1_000_000
"""The most panes read at a time: a window may have as many panes as it has rows."""


@dataclass(frozen=True, slots=True)
class CountWindows:
    """The windows over the rows of one key, numbered from 0. A pane has `pane_rows` rows."""

    size: int
    slide: int

    @property
    def pane_rows(self) -> int:
        return math.gcd(self.size, self.slide)

    @property
    def panes_of_window(self) -> int:
        return self.size // self.pane_rows

    def panes(self, numbers: Longs) -> Longs:
        return numbers // self.pane_rows

    def are_covered(self, numbers: Longs) -> npt.NDArray[np.bool_]:
        """False for rows in the gaps between windows, if windows are shorter than their slide."""
        return np.asarray((numbers // self.slide + 1) * self.slide - numbers <= self.size)

    def complete(self, rows: Longs) -> Longs:
        """Returns how many windows that many rows have completed."""
        return rows // self.slide

    def first_panes(self, windows: Longs) -> Longs:
        """Returns the first pane of the n-th window, from 1; negative if before the first row."""
        return (windows * self.slide - self.size) // self.pane_rows


def count_windows(size: int, slide: int | None) -> CountWindows:
    """Raises Rejected unless both are positive."""
    every = size if slide is None else slide
    if size < 1 or every < 1:
        raise Rejected(
            f"A window of {size} rows every {every} rows cannot be; both must be positive."
        )
    return CountWindows(size, every)


class CountWindowAggregate(Operator):
    """Emits keys and aggregates, in the order in which windows were completed."""

    def __init__(
        self, keys: tuple[str, ...], windows: CountWindows, aggregates: Mapping[str, Aggregate]
    ) -> None:
        self._keys = keys
        self._windows = windows
        self._aggregates = dict(aggregates)

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return self._bound(inputs[0]).output_schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._aggregation = self._bound(inputs[0])
        self._by_pane = self._in_panes(inputs[0])
        self._panes = context.state.table(self._by_pane.descriptor("panes", self._keys))
        self._counts = context.state.table(self._count_descriptor(inputs[0]))

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Folds rows into panes and emits the windows that they complete.

        1. Number the rows. 2. Fold those that a window covers into their panes. 3. Emit the windows
        that are complete. 4. Delete the panes that no later window covers.
        """
        groups = group(batch, list(self._keys))
        counted = self._counts.rows_for(groups.keys)
        before = self._counts.read(_ROWS, counted).astype(np.int64, copy=False)
        numbers = before[groups.index] + ranks(groups)
        after = before + np.bincount(groups.index, minlength=groups.count)
        self._counts.write(_ROWS, counted, after)
        self._fold(batch, numbers)
        self._emit(groups, numbers)
        oldest = self._counts.read(_OLDEST, counted).astype(np.int64, copy=False)
        next_windows = self._windows.complete(after) + 1
        needed = np.maximum(self._windows.first_panes(next_windows), oldest)
        self._counts.write(_OLDEST, counted, needed)
        newest = self._windows.panes(after - 1)
        self._delete(groups.keys, oldest, np.minimum(needed, newest + 1))

    def _fold(self, batch: pa.RecordBatch, numbers: Longs) -> None:
        windowed = _with_pane(batch, self._windows.panes(numbers))
        is_covered = self._windows.are_covered(numbers)
        if not is_covered.all():
            windowed = windowed.filter(pa.array(is_covered))
        groups = group(windowed, self._by_pane.key_names)
        reduced = self._by_pane.reduce(self._by_pane.lift(windowed), groups)
        self._by_pane.fold(self._panes, groups.keys, reduced)

    def _emit(self, groups: Groups, numbers: Longs) -> None:
        """Emits windows, which are complete with their last row, in the order of those rows."""
        windows = self._windows
        last = np.flatnonzero((numbers + 1) % windows.slide == 0)
        at_once = min(MAX_OUTPUT_ROWS, max(1, MERGED_MAX // windows.panes_of_window))
        for start in range(0, len(last), at_once):
            of_piece = last[start : start + at_once]
            keys = groups.keys.take(pa.array(groups.index[of_piece]))
            first = windows.first_panes(windows.complete(numbers[of_piece] + 1))
            self.context.collect(self._aggregation.results(keys, self._merged(keys, first)))

    def _merged(self, keys: pa.RecordBatch, first_panes: Longs) -> list[Values]:
        """Merges, for each key, the accumulators of one window's panes, from its first pane on."""
        count = self._windows.panes_of_window
        of_window = np.repeat(np.arange(keys.num_rows), count)
        panes = np.repeat(first_panes, count) + np.tile(np.arange(count), keys.num_rows)
        there = panes >= 0
        of_window, panes = of_window[there], panes[there]
        rows = self._panes.find(_with_pane(keys.take(pa.array(of_window)), panes))
        groups = Groups(keys, of_window)
        lifted = [self._panes.read(a.name, rows) for a in self._by_pane.accumulators]
        return self._by_pane.reduce(lifted, groups)

    def _delete(self, keys: pa.RecordBatch, begin: Longs, end: Longs) -> None:
        """Deletes the panes of each key from `begin` up to, not including, `end`."""
        counts = np.maximum(end - begin, 0)
        of_key = np.repeat(np.arange(keys.num_rows), counts)
        begins = np.repeat(np.cumsum(counts) - counts, counts)
        panes = begin[of_key] + np.arange(len(of_key)) - begins
        rows = self._panes.find(_with_pane(keys.take(pa.array(of_key)), panes))
        self._panes.delete(rows[rows != NO_ROW])

    def _bound(self, schema: pa.Schema) -> Aggregation:
        return Aggregation.of(self._keys, self._aggregates, schema)

    def _in_panes(self, schema: pa.Schema) -> Aggregation:
        with_pane = schema.append(pa.field(PANE, pa.int64()))
        return Aggregation.of((*self._keys, PANE), self._aggregates, with_pane)

    def _count_descriptor(self, schema: pa.Schema) -> TableDescriptor:
        key = pa.schema([field_of(schema, name) for name in self._keys])
        value = pa.schema([(_ROWS, pa.int64()), (_OLDEST, pa.int64())])
        return TableDescriptor("counts", key, value, {_ROWS: 0, _OLDEST: 0}, self._keys)


def ranks(groups: Groups) -> Longs:
    """Returns the number of each row within its group, from 0, in order of arrival."""
    order = np.argsort(groups.index, kind="stable")
    counts = np.bincount(groups.index, minlength=groups.count)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - begins
    return found


def _with_pane(rows: pa.RecordBatch, panes: Longs) -> pa.RecordBatch:
    return rows.append_column(pa.field(PANE, pa.int64()), pa.array(panes))
