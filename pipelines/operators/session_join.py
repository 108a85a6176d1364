"""Equi-join of two streams within sessions of event time, which the rows of both sides form.

Rows of a key, on either side, that follow each other within the gap are one session. When it is
due, each of its left rows meets each of its right ones, so two rows may meet although they are
further apart than the gap. State: the extents of the sessions (`session_state`) and the rows of
both sides, by pane. A null key forms sessions and matches nothing.

Source: Flink's `JoinedStreams` with `EventTimeSessionWindows`.
"""

import pyarrow as pa

from pipelines.operators.aggregation import Aggregation
from pipelines.operators.columns import Longs, longs
from pipelines.operators.joined_columns import LATE_SIDES, SIDES, JoinKind
from pipelines.operators.keyed_time import KeyedTime
from pipelines.operators.operator import OperatorContext
from pipelines.operators.paired_rows import DueRows
from pipelines.operators.pane_rows import PaneRows
from pipelines.operators.session_entry import SessionEntry
from pipelines.operators.session_runs import NO_RUN
from pipelines.operators.session_state import Sessions, SessionState
from pipelines.operators.windowed_join import WindowedJoin, has_bounds
from pipelines.operators.windows import SessionWindows


class SessionJoin(WindowedJoin):
    def __init__(
        self,
        on: tuple[str, ...],
        time_columns: tuple[str, str],
        windows: SessionWindows,
        kind: JoinKind = JoinKind.INNER,
    ) -> None:
        super().__init__(on, time_columns, kind, has_bounds=has_bounds(windows, kind))
        self._gap_ms = windows.gap_ms

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        keys = pa.schema([inputs[0].field(key) for key in self._on])
        self._sessions = SessionState(Aggregation(keys, ()), context.state, self._gap_ms, 0)
        self._time = KeyedTime(context, self._on)
        self._entries = [
            SessionEntry(self._sessions, column, self._gap_ms, context, self._time, side=side)
            for column, side in zip(self._time_columns, LATE_SIDES, strict=True)
        ]
        sides = zip(SIDES, inputs, self._time_columns, strict=True)
        self._buffered = [PaneRows(context.state, n, s, self._on, t) for n, s, t in sides]

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        in_time, times = self._entries[port].admit(batch)
        if in_time.num_rows == 0:
            return
        self._sessions.add(in_time, times, [])
        self._keep(port, in_time, times)

    def on_watermark(self, timestamp_ms: int) -> None:
        self._time.advance(timestamp_ms)
        due = self._sessions.take_due(self._time)
        if due is not None and len(due):
            self._join(*(self._take(port, due) for port in range(len(SIDES))))

    def _take(self, port: int, due: Sessions) -> DueRows:
        """Remove and return the rows of the due sessions; the others stay."""
        rows = self._buffered[port].take_rows(int(due.last_ms.max()))
        times = longs(rows.column(self._time_columns[port]))
        session = due.of_rows(rows, times)
        stays = session == NO_RUN
        self._keep(port, rows.filter(pa.array(stays)), times[stays])
        of = session[~stays]
        taken = rows.filter(pa.array(~stays))
        return DueRows(taken, due.first_ms[of], due.last_ms[of] + self._gap_ms)

    def _keep(self, port: int, rows: pa.RecordBatch, times_ms: Longs) -> None:
        self._buffered[port].add(rows, times_ms - times_ms % self._gap_ms)
