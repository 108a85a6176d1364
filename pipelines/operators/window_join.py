"""Equi-join of two streams within tumbling or sliding windows of event time.

Both sides are buffered by window until the watermark, the smaller one of the two inputs, makes the
window due. Then all due windows are joined at once, with the window as another key column. Every
matching pair counts. Null equals nothing, as in SQL. Left rows without a match are counted, because
an inner join loses them and operators ask how many. An outer join emits rows without a partner when
the window is due, so it never retracts anything.

Source: Flink's `WindowJoinOperator`.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.operators.joined_columns import LATE_SIDES, SIDES, JoinKind
from pipelines.operators.keyed_time import KeyedTime
from pipelines.operators.lateness import WindowEntry
from pipelines.operators.operator import OperatorContext
from pipelines.operators.paired_rows import DueRows
from pipelines.operators.pane_rows import PaneRows
from pipelines.operators.windowed_join import WindowedJoin, has_bounds
from pipelines.operators.windows import AlignedWindows


@dataclass(frozen=True, slots=True)
class _Side:
    entry: WindowEntry
    buffered: PaneRows  # a row once for each window to which it belongs

    def take_due(self, newest_due: int) -> DueRows:
        """Remove and return the rows of all due windows."""
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
    ) -> None:
        super().__init__(on, time_columns, kind, has_bounds=has_bounds(windows, kind))
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
