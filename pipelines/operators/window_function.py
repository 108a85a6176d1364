"""Calls an author's function once per key and window, with all of its rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.operators.batch_function import check_declared
from pipelines.operators.columns import Longs, in_slices
from pipelines.operators.grouping import group
from pipelines.operators.operator import OperatorContext


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """[start, end) in milliseconds since the epoch. Source: Flink's `TimeWindow`."""

    start_ms: int
    end_ms: int


WindowFunction = Callable[[TimeWindow, pa.RecordBatch], pa.RecordBatch]
"""Maps the rows of one key in one window, in order of arrival, to any number of rows. Pure."""


@dataclass(frozen=True, slots=True)
class WindowCalls:
    """One call per key and window: cheap for many rows, not for very many small windows."""

    function: WindowFunction
    schema: pa.Schema
    keys: tuple[str, ...]
    context: OperatorContext

    def on_rows(self, rows: pa.RecordBatch, starts: Longs, ends: Longs) -> None:
        """Takes rows with the window of each; calls the function by window, then by key."""
        if rows.num_rows == 0:
            return
        windowed = rows.select(list(self.keys))
        windowed = windowed.append_column("__start", pa.array(starts))
        windowed = windowed.append_column("__end", pa.array(ends))
        columns = ["__start", "__end", *self.keys]
        order = pc.sort_indices(windowed, sort_keys=[(name, "ascending") for name in columns])
        code = group(windowed, columns).index[order]
        self._call_for_runs(rows.take(order), code, starts[order], ends[order])

    def _call_for_runs(self, rows: pa.RecordBatch, code: Longs, starts: Longs, ends: Longs) -> None:
        begins = np.flatnonzero(np.append(True, code[1:] != code[:-1])).tolist()
        results = []
        for begin, end in zip(begins, [*begins[1:], len(code)], strict=True):
            window = TimeWindow(int(starts[begin]), int(ends[begin]))
            result = self.function(window, rows.slice(begin, end - begin))
            check_declared(self.context.uid, result.schema, self.schema)
            results.append(result)
        for piece in in_slices(pa.concat_batches(results)):
            self.context.collect(piece)
