"""Decides which rows still have a window to enter, and counts the others.

A row is late when its window has been emitted: letting it in would emit the window twice. Event
time at a restored cut is part of the decision, or a recovery would change which rows are late.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.operators.columns import Longs
from pipelines.operators.operator import OperatorContext
from pipelines.operators.windows import TumblingWindows

LATE_RECORDS = "late_records"
RECORDS_WITHOUT_TIME = "records_without_time"


@dataclass(slots=True)
class WindowEntry:
    """`watermark_ms` is the newest that the operator has seen."""

    windows: TumblingWindows
    time_column: str
    context: OperatorContext
    watermark_ms: int

    def admit(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Longs]:
        """The rows that are in time, with the start of the window of each."""
        timed = self._with_time(batch)
        starts = self.windows.starts(timed.column(self.time_column))
        is_in_time = starts > self.windows.newest_due(self.watermark_ms)
        if is_in_time.all():
            return timed, starts
        self.context.count(LATE_RECORDS, int(np.count_nonzero(~is_in_time)))
        return timed.filter(pa.array(is_in_time)), starts[is_in_time]

    def _with_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        event_time = batch.column(self.time_column)
        if event_time.null_count == 0:
            return batch
        self.context.count(RECORDS_WITHOUT_TIME, event_time.null_count)
        return batch.filter(pc.is_valid(event_time))
