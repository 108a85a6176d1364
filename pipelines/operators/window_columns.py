"""The columns that name a window in the output, and the order of results.

`window_start` and `window_end` bound the window. `window_time`, its last millisecond, is the event
time of a result whose window may overlap others (Flink gives results that timestamp).
"""

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.operators.columns import EVENT_TIME, Longs, timestamps

WINDOW_START = "window_start"
WINDOW_END = "window_end"
WINDOW_TIME = "window_time"
BOUNDS = (WINDOW_START, WINDOW_END, WINDOW_TIME)


def with_window(batch: pa.RecordBatch, starts: Longs) -> pa.RecordBatch:
    """Replaces an input column of that name, which comes from earlier windows."""
    others = batch.select([name for name in batch.schema.names if name != WINDOW_START])
    return others.append_column(pa.field(WINDOW_START, EVENT_TIME), timestamps(starts))


def with_bounds(
    results: pa.RecordBatch, key_count: int, starts: Longs, ends: Longs
) -> pa.RecordBatch:
    """Puts the three columns between the keys and the rest."""
    bounds = [timestamps(starts), timestamps(ends), timestamps(ends - 1)]
    columns = [*results.columns[:key_count], *bounds, *results.columns[key_count:]]
    return pa.RecordBatch.from_arrays(columns, schema=bounded_schema(results.schema, key_count))


def bounded_schema(schema: pa.Schema, key_count: int) -> pa.Schema:
    fields = list(schema)
    bounds = [pa.field(name, EVENT_TIME) for name in BOUNDS]
    return pa.schema([*fields[:key_count], *bounds, *fields[key_count:]])


def in_order(results: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Sorts, so that the same state is always emitted in the same order."""
    order = [(column, "ascending") for column in columns]
    return results.take(pc.sort_indices(results, sort_keys=order))
