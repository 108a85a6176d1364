"""Combines the rows of each batch by key and pane before the exchange of a windowed aggregation.

Fewer rows travel, and fewer reach the state. The operator keeps nothing from one batch to the next,
so barriers and watermarks need nothing from it. A combined row carries the event time of one of its
rows, and their number. Rows of a pane share all their windows. So the aggregation after the
exchange finds the same rows late, and counts as many, as without this step.

Where keys hardly repeat, batches pass as they are, and now and then the operator tries one again.
So the operator after the exchange takes both kinds of batches; it tells them apart by their
columns.

Source: Flink SQL's two-phase (local-global) window aggregation, without its buffer across batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.operators.aggregating.aggregates import Aggregate, Values
from pipelines.operators.aggregating.aggregation import (
    BATCHES_BETWEEN_PROBES,
    WORTHWHILE_RATIO,
    Aggregation,
)
from pipelines.operators.columns import (
    Groups,
    Longs,
    check_event_time,
    group,
    longs,
    one_row_each,
)
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.operators.windowing.windows import (
    COMBINED_ROWS,
    WINDOW_START,
    AlignedWindows,
    with_window,
)

_HAS_TIME = "__has_time"
_NO_STARTS: Longs = np.empty(0, np.int64)


def windowed_aggregation(
    keys: tuple[str, ...], time_column: str, aggregates: Mapping[str, Aggregate], schema: pa.Schema
) -> Aggregation:
    """Aggregates by key and window over rows of `schema`. Raises Rejected naming the column."""
    check_event_time(schema, time_column)
    windowed = with_window(pa.RecordBatch.from_pylist([], schema=schema), _NO_STARTS).schema
    return Aggregation.of((*keys, WINDOW_START), aggregates, windowed)


@dataclass(frozen=True, slots=True)
class CombinedRows:
    """The columns of combined rows: keys, event time, number of rows, and accumulators."""

    aggregation: Aggregation
    schema: pa.Schema
    own_columns: tuple[str, ...]  # keys and event time

    @classmethod
    def of(
        cls, aggregation: Aggregation, keys: tuple[str, ...], time_column: str, schema: pa.Schema
    ) -> "CombinedRows | None":
        """Returns the columns for rows of `schema`, or None if a name would occur twice."""
        own = (*keys, time_column)
        names = [*own, COMBINED_ROWS, *(each.name for each in aggregation.accumulators)]
        if len(set(names)) < len(names) or COMBINED_ROWS in schema.names:
            return None
        types = [*map(schema.field, own), pa.field(COMBINED_ROWS, pa.int64())]
        types += [pa.field(each.name, each.type) for each in aggregation.accumulators]
        return cls(aggregation, pa.schema(types), own)

    def made_of(
        self, windowed: pa.RecordBatch, rows: pa.RecordBatch, groups: Groups
    ) -> pa.RecordBatch:
        """Makes one row for each group of `rows`; `windowed` are the same rows with their pane."""
        aggregation = self.aggregation
        reduced = aggregation.reduce(aggregation.lift(windowed), groups)
        own = rows.select(list(self.own_columns)).take(pa.array(one_row_each(groups.index)))
        counts = pa.array(np.bincount(groups.index, minlength=groups.count), pa.int64())
        pairs = zip(aggregation.accumulators, reduced, strict=True)
        columns = [*own.columns, counts, *(each.to_arrow(values) for each, values in pairs)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def lifted(aggregation: Aggregation, windowed: pa.RecordBatch) -> list[Values]:
    """Returns the accumulators of each row, whether combined or not."""
    if COMBINED_ROWS in windowed.schema.names:
        return aggregation.lifted(windowed)
    return aggregation.lift(windowed)


class CombineInPanes(Operator):
    """Declares the columns of its input; batches of combined rows have those of `CombinedRows`."""

    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: AlignedWindows,
        aggregates: Mapping[str, Aggregate],
    ) -> None:
        self._keys = keys
        self._time_column = time_column
        self._windows = windows
        self._aggregates = dict(aggregates)
        self._uncombined_batches_left = 0

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        aggregation = windowed_aggregation(
            self._keys, self._time_column, self._aggregates, inputs[0]
        )
        self._combined = CombinedRows.of(aggregation, self._keys, self._time_column, inputs[0])

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        if self._combined is None:
            self._pass(batch)
        elif self._uncombined_batches_left:
            self._uncombined_batches_left -= 1
            self._pass(batch)
        else:
            self._try_to_combine(batch, self._combined)

    def _try_to_combine(self, batch: pa.RecordBatch, combined: CombinedRows) -> None:
        windowed, columns = self._in_panes(batch)
        groups = group(windowed, columns)
        if groups.count > batch.num_rows * WORTHWHILE_RATIO:
            self._uncombined_batches_left = BATCHES_BETWEEN_PROBES
            self._pass(batch)
        else:
            self.context.collect(combined.made_of(windowed, batch, groups))

    def _in_panes(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[str]]:
        """Returns the rows with their panes, and the columns that keep rows from being combined."""
        times = batch.column(self._time_column)
        panes = self._windows.panes(longs(times.fill_null(0)))
        windowed = with_window(batch, panes)
        columns = list(self._keys)
        if len(panes) and panes.min() < panes.max():
            columns.append(WINDOW_START)
        if times.null_count:
            windowed = windowed.append_column(_HAS_TIME, pc.is_valid(times))
            columns.append(_HAS_TIME)
        return windowed, columns

    def _pass(self, batch: pa.RecordBatch) -> None:
        if self.context.lineage is not None:
            self.context.lineage.descend_from(np.arange(batch.num_rows))
        self.context.collect(batch)
