"""Decides which rows are too late for any session; for other windows see `lateness`."""

from dataclasses import dataclass

import pyarrow as pa

from pipelines.operators.columns import Longs
from pipelines.operators.keyed_time import KeyedTime
from pipelines.operators.lateness import LATE, with_time, without_late
from pipelines.operators.operator import OperatorContext
from pipelines.operators.session_state import SessionState


@dataclass(slots=True)
class SessionEntry:
    sessions: SessionState
    time_column: str
    gap_ms: int
    context: OperatorContext
    time: KeyedTime
    lateness_ms: int = 0
    side: str = LATE  # the output for late rows

    def admit(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Longs]:
        """The rows that are on time, and the event time of each.

        A row that would be a closed session by itself may still extend an open one: Flink merges
        first, and then asks if the result is late.
        """
        rows, times = with_time(self.context, batch, self.time_column)
        is_late = times + self.gap_ms - 1 + self.lateness_ms <= self.time.of(rows)
        if is_late.any():
            suspects = rows.filter(pa.array(is_late))
            is_late[is_late] = ~self.sessions.touches_open(suspects, times[is_late])
        return without_late(self.context, rows, times, is_late, self.side)
