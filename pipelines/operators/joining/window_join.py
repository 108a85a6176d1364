"""Equi-join of two streams within tumbling or sliding windows of event time.

Both sides are buffered by window until the watermark, the smaller one of the two inputs, makes the
window due. Then all due windows are joined at once, with the window as another key column. Every
matching pair counts. Null equals nothing, as in SQL. Left rows without a match are counted, because
an inner join loses them and operators ask how many. An outer join emits rows without a partner when
the window is due, so it never retracts anything.

Source: Flink's `WindowJoinOperator`.

Equi-join of two streams within sessions of event time, which the rows of both sides form.

Rows of a key, on either side, that follow each other within the gap are one session. When it is
due, each of its left rows meets each of its right ones, so two rows may meet although they are
further apart than the gap. State: the extents of the sessions (`session_state`) and the rows of
both sides, by pane. A null key forms sessions and matches nothing.

Source: Flink's `JoinedStreams` with `EventTimeSessionWindows`.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.operators.aggregating.aggregation import Aggregation
from pipelines.operators.columns import Longs, longs
from pipelines.operators.joining.windowed_join import (
    LATE_SIDES,
    SIDES,
    DueRows,
    JoinKind,
    WindowedJoin,
    has_bounds,
)
from pipelines.operators.keyed_time import KeyedTime
from pipelines.operators.operator import OperatorContext
from pipelines.operators.windowing.lateness import WindowEntry
from pipelines.operators.windowing.session_operator import SessionEntry
from pipelines.operators.windowing.session_state import NO_RUN, Sessions, SessionState
from pipelines.operators.windowing.window_rows import PaneRows
from pipelines.operators.windowing.windows import AlignedWindows, SessionWindows


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
            SessionEntry(
                sessions=self._sessions,
                time_column=column,
                gap_ms=self._gap_ms,
                context=context,
                time=self._time,
                side=side,
            )
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
