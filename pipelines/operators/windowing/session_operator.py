"""The steps of every operator over sessions of one input: admit, note the extent, emit.

State: the extents of the sessions (`session_state`). Subclasses decide what else a session holds,
and what they emit.

With an allowed lateness, a session stays for that long after it was due. If rows that come
meanwhile extend it or join it to another, it is emitted again, whole and with its new bounds;
nothing retracts what was emitted before. A row is late if it would be a closed session of its own
and extends no open one.

Source: Flink's `WindowOperator` with merging windows.

Decides which rows are too late for any session; for other windows see `lateness`.
"""

from abc import abstractmethod
from dataclasses import dataclass

import pyarrow as pa

from pipelines.operators.aggregating.aggregates import Values
from pipelines.operators.aggregating.aggregation import Aggregation
from pipelines.operators.columns import Longs
from pipelines.operators.keyed_time import KeyedTime
from pipelines.operators.operator import OperatorContext
from pipelines.operators.windowing.lateness import LATE, WindowOperator, with_time, without_late
from pipelines.operators.windowing.session_state import Sessions, SessionState
from pipelines.operators.windowing.windows import SessionWindows


@dataclass(slots=True, kw_only=True)
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


class SessionOperator(WindowOperator):
    def __init__(
        self, keys: tuple[str, ...], time_column: str, windows: SessionWindows, lateness_ms: int
    ) -> None:
        super().__init__(keys, time_column, lateness_ms)
        self._gap_ms = windows.gap_ms

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._sessions = SessionState(
            self._accumulated(inputs[0]), context.state, self._gap_ms, self._lateness_ms
        )
        self._entry = SessionEntry(
            sessions=self._sessions,
            time_column=self._time_column,
            gap_ms=self._gap_ms,
            context=context,
            time=KeyedTime(context, self._keys),
            lateness_ms=self._lateness_ms,
        )

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        in_time, times = self._entry.admit(batch)
        if in_time.num_rows == 0:
            return
        self._sessions.add(in_time, times, self._take_in(in_time, times))
        if self._lateness_ms:
            self._give_out_due()

    def on_watermark(self, timestamp_ms: int) -> None:
        self._entry.time.advance(timestamp_ms)
        self._give_out_due()

    @abstractmethod
    def _accumulated(self, schema: pa.Schema) -> Aggregation:
        """What is kept per session and key in addition to the extent."""

    @abstractmethod
    def _take_in(self, rows: pa.RecordBatch, times_ms: Longs) -> list[Values]:
        """Keep rows that are on time; returns their accumulators."""

    @abstractmethod
    def _give_out(self, due: Sessions) -> None:
        """Handles due sessions: emits changed ones; closed ones will not come again."""

    def _give_out_due(self) -> None:
        due = self._sessions.take_due(self._entry.time)
        if due is not None and len(due):
            self._give_out(due)
