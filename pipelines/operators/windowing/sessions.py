"""Sessions of one input, and the operators that emit a result or call a function for each.

State: the extents of the sessions, with their accumulators or, by pane, their rows. A pane is as
wide as the gap. So the rows of one key in one pane always belong to one session, and a batch is
folded into panes without looking for sessions. When event time advances, array arithmetic joins
panes that follow each other within the gap into runs, one for each session. Sessions whose gap has
passed are emitted. Each of the others is folded into its earliest pane, so that an open session
costs one row.

With an allowed lateness, a session stays for that long after it was due. If rows that arrive
meanwhile extend it or join it to another, it is emitted again, whole and with its new bounds;
nothing retracts earlier results. A row is late if it would be a closed session of its own and
extends no open one; for other windows see `windows`.

Source: Flink's `EventTimeSessionWindows` for the sessions and when they merge, and its
`WindowOperator` with merging windows and a `ProcessWindowFunction`. Flink's `MergingWindowSet`
merges windows one by one; panes are ours.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.event_time import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from pipelines.operators.aggregating.aggregates import Accumulator, Aggregate, Combine, Values
from pipelines.operators.aggregating.aggregation import Aggregation, check_distinct, fold, reduce
from pipelines.operators.columns import Groups, Longs, group, in_slices, longs
from pipelines.operators.event_time import KeyedTime
from pipelines.operators.operator import OperatorContext
from pipelines.operators.windowing.window_aggregate import PaneRows, WindowCalls, WindowFunction
from pipelines.operators.windowing.windows import (
    BOUNDS,
    LATE,
    WINDOW_START,
    SessionWindows,
    WindowOperator,
    bounded_schema,
    in_order,
    with_bounds,
    with_time,
    without_late,
)
from pipelines.state.backend import Rows, StateBackend, Table, TableDescriptor

NO_RUN = -1


@dataclass(frozen=True, slots=True)
class Runs:
    """`of` maps each interval to its run. Runs are in order of key, then of time."""

    of: Longs
    key: Longs  # by run
    first: Longs
    last: Longs
    head: Longs  # by run: the position of its earliest interval

    @property
    def count(self) -> int:
        return len(self.key)


def runs_of(key: Longs, first: Longs, last: Longs, gap_ms: int) -> Runs:
    """Joins intervals [first, last] of equal key if at most `gap_ms` lies between them.

    1. Sort by key, then by beginning.
    2. Find how far the intervals of the key reach so far: a maximum that restarts with each key.
    3. A run begins where the next interval begins beyond the gap.
    """
    order = np.lexsort((first, key))
    keys, begin = key[order], first[order]
    reach = _running_maximum(keys, last[order])
    starts = np.ones(len(order), np.bool_)
    starts[1:] = (keys[1:] != keys[:-1]) | (begin[1:] > reach[:-1] + gap_ms)
    run = np.cumsum(starts) - 1
    of = np.empty(len(order), np.int64)
    of[order] = run
    at = np.flatnonzero(starts)
    ends = np.append(at[1:], len(order)) - 1 if len(order) else at
    return Runs(of, keys[at], begin[at], reach[ends], order[at])


def run_at(runs: Runs, key: Longs, times_ms: Longs, gap_ms: int) -> Longs:
    """Returns the run that contains each key and time, or is within the gap of it, or NO_RUN.

    The runs of a key are further apart than the gap, so only one run is possible: the last that
    begins at most a gap after the time.
    """
    keys = np.concatenate([runs.key, key])
    begins = np.concatenate([runs.first, times_ms + gap_ms])
    is_row = np.arange(len(keys)) >= runs.count
    order = np.lexsort((is_row, begins, keys))
    candidate = np.maximum.accumulate(np.where(is_row[order], -1, order))
    chosen = np.empty(len(keys), np.int64)
    chosen[order] = candidate
    chosen = chosen[runs.count :]
    known = np.flatnonzero(chosen >= 0)
    run = chosen[known]
    is_held = (runs.key[run] == key[known]) & (runs.last[run] + gap_ms >= times_ms[known])
    chosen[known[~is_held]] = NO_RUN
    return chosen


def _running_maximum(ascending_keys: Longs, values: Longs) -> Longs:
    """Compares ranks, not values, so that a later key outranks everything of an earlier one."""
    by_value = np.sort(values)
    rank = np.searchsorted(by_value, values)
    climbing = np.maximum.accumulate(ascending_keys * len(values) + rank)
    reached: Longs = by_value[climbing - ascending_keys * len(values)]
    return reached


PANE = "__pane"
FIRST = Accumulator("__first", pa.int64(), Combine.MIN)
LAST = Accumulator("__last", pa.int64(), Combine.MAX)
_EMITTED = "__emitted"

Flags = npt.NDArray[np.bool_]
_NO_ROWS: Longs = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Due sessions, one row each. Each has changed since it was emitted, or is closed."""

    keys: pa.RecordBatch
    first_ms: Longs
    last_ms: Longs
    accumulated: list[Values]
    is_changed: Flags
    is_closed: Flags  # no row can enter the session any more, and it is dropped

    def __len__(self) -> int:
        return len(self.first_ms)

    def changed(self) -> "Sessions":
        return self if self.is_changed.all() else self.where(self.is_changed)

    def of_rows(self, rows: pa.RecordBatch, times_ms: Longs) -> Longs:
        """Returns the position of the session that contains each row, or NO_RUN if none does."""
        codes = _common_codes(self.keys, rows)
        runs = Runs(_NO_ROWS, codes[: len(self)], self.first_ms, self.last_ms, _NO_ROWS)
        return run_at(runs, codes[len(self) :], times_ms, 0)

    def where(self, chosen: Flags) -> "Sessions":
        return Sessions(
            self.keys.filter(pa.array(chosen)),
            self.first_ms[chosen],
            self.last_ms[chosen],
            [values[chosen] for values in self.accumulated],
            self.is_changed[chosen],
            self.is_closed[chosen],
        )


class SessionState:
    """Guarantee: a session is emitted when due, again if it has grown since, and then dropped.

    `aggregation` is over the stream's key only and may have no aggregates.
    """

    def __init__(
        self, aggregation: Aggregation, state: StateBackend, gap_ms: int, lateness_ms: int
    ) -> None:
        self._aggregation = aggregation
        self._gap_ms = gap_ms
        self._lateness_ms = lateness_ms
        self._accumulators = [FIRST, LAST, *aggregation.accumulators]
        self._panes: Table = state.table(self._descriptor())
        self._idle_until_ms = MIN_WATERMARK_MS  # nothing is due or closed before this watermark

    def add(self, rows: pa.RecordBatch, times_ms: Longs, lifted: list[Values]) -> None:
        """Adds rows that are on time, with their accumulators."""
        panes = times_ms - times_ms % self._gap_ms
        keyed = rows.select(self._aggregation.key_names).append_column(PANE, pa.array(panes))
        groups = group(keyed, [*self._aggregation.key_names, PANE])
        reduced = reduce(self._accumulators, [times_ms, times_ms, *lifted], groups)
        fold(self._panes, self._accumulators, groups.keys, reduced)
        if self._lateness_ms:
            touched = self._panes.rows_for(groups.keys)
            self._panes.write(_EMITTED, touched, np.zeros(len(touched), np.bool_))
        self._idle_until_ms = min(self._idle_until_ms, int(times_ms.min()) + self._gap_ms - 1)

    def touches_open(self, rows: pa.RecordBatch, times_ms: Longs) -> Flags:
        """True for each row that would extend a session that is not closed yet."""
        panes = self._panes.select_at_most(PANE, MAX_WATERMARK_MS)
        codes = _common_codes(self._panes.keys(panes).select(self._aggregation.key_names), rows)
        runs = self._runs(panes, codes[: len(panes)])
        touched = run_at(runs, codes[len(panes) :], times_ms, self._gap_ms)
        return np.asarray(touched != NO_RUN)

    def take_due(self, time: KeyedTime) -> Sessions | None:
        """Returns the sessions that are due and have changed since the last call, or are closed.

        1. Take the panes that can be part of such a session and join them into sessions.
        2. Emit the sessions that are due.
        3. Drop the closed ones.
        4. Fold each of the others into one pane.
        """
        newest_ms = time.newest_ms
        if newest_ms < self._idle_until_ms:
            return None
        panes = self._panes.select_at_most(PANE, newest_ms + 1)
        keyed = group(self._panes.keys(panes), self._aggregation.key_names)
        runs = self._runs(panes, keyed.index)
        end_ms = runs.last + self._gap_ms - 1
        keys = keyed.keys.take(pa.array(runs.key))
        now_ms = time.of(keys)
        is_due, is_closed = end_ms <= now_ms, end_ms + self._lateness_ms <= now_ms
        accumulated = self._accumulated(panes, runs)
        is_changed = is_due & self._has_changed(panes, runs)
        sessions = Sessions(
            keys,
            runs.first,
            runs.last,
            accumulated[2:],
            is_changed,
            is_closed,
        ).where(is_changed | is_closed)
        self._panes.delete(panes[is_closed[runs.of]])
        self._compact(panes, runs, accumulated, ~is_closed)
        self._mark_emitted(panes[runs.head[is_due & ~is_closed]])
        next_ms = np.where(is_due, end_ms + self._lateness_ms, end_ms)[~is_closed]
        self._idle_until_ms = int(next_ms.min(initial=newest_ms + 1 + self._gap_ms))
        return sessions

    def _runs(self, panes: Rows, codes: Longs) -> Runs:
        first, last = (self._panes.read(each.name, panes) for each in (FIRST, LAST))
        return runs_of(codes, first.astype(np.int64), last.astype(np.int64), self._gap_ms)

    def _accumulated(self, panes: Rows, runs: Runs) -> list[Values]:
        by_pane = [self._panes.read(each.name, panes) for each in self._accumulators]
        return reduce(self._accumulators, by_pane, _as_groups(runs))

    def _has_changed(self, panes: Rows, runs: Runs) -> Flags:
        changed = np.ones(runs.count, np.bool_)
        if self._lateness_ms:
            is_new = ~self._panes.read(_EMITTED, panes).astype(np.bool_)
            changed = np.bincount(runs.of, is_new, minlength=runs.count) > 0
        return changed

    def _compact(
        self,
        panes: Rows,
        runs: Runs,
        accumulated: list[Values],
        stays: Flags,
    ) -> None:
        """Folds each session of several panes into its earliest pane, which is always examined."""
        several = stays & (np.bincount(runs.of, minlength=runs.count) > 1)
        if not several.any():
            return
        heads = panes[runs.head[several]]
        for accumulator, values in zip(self._accumulators, accumulated, strict=True):
            self._panes.write(accumulator.name, heads, values[several])
        is_head = np.zeros(len(panes), np.bool_)
        is_head[runs.head] = True
        if self._lateness_ms:
            changed = self._has_changed(panes, runs)[several]
            self._panes.write(_EMITTED, heads, ~changed)
        self._panes.delete(panes[several[runs.of] & ~is_head])

    def _mark_emitted(self, heads: Rows) -> None:
        if len(heads):
            self._panes.write(_EMITTED, heads, np.ones(len(heads), np.bool_))

    def _descriptor(self) -> TableDescriptor:
        keys = self._aggregation.key_names
        values = [(each.name, each.type) for each in self._accumulators]
        defaults: dict[str, int | float | bool] = {e.name: e.identity for e in self._accumulators}
        if self._lateness_ms:
            values.append((_EMITTED, pa.bool_()))
            defaults[_EMITTED] = False
        return replace(
            self._aggregation.descriptor("sessions", tuple(keys)),
            key=self._aggregation.keys.append(pa.field(PANE, pa.int64())),
            value=pa.schema(values),
            defaults=defaults,
        )


def _common_codes(keys: pa.RecordBatch, rows: pa.RecordBatch) -> Longs:
    """Numbers keys, equal keys alike: first those of `keys`, then those of `rows`."""
    columns = [rows.column(name) for name in keys.schema.names]
    of_rows = pa.RecordBatch.from_arrays(columns, schema=keys.schema)
    return group(pa.concat_batches([keys, of_rows]), keys.schema.names).index


def _as_groups(runs: Runs) -> Groups:
    """Sets only the index and the number of groups; nothing else matters here."""
    numbered = pa.RecordBatch.from_arrays([pa.array(np.arange(runs.count))], names=["run"])
    return Groups(numbered, runs.of)


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
        """Returns the rows that are on time, and the event time of each.

        A row that would be a closed session by itself may still extend an open one: Flink merges
        first, and then checks whether the result is late.
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
        """Returns the aggregation that is kept per session and key in addition to the extent."""

    @abstractmethod
    def _take_in(self, rows: pa.RecordBatch, times_ms: Longs) -> list[Values]:
        """Keeps rows that are on time; returns their accumulators."""

    @abstractmethod
    def _give_out(self, due: Sessions) -> None:
        """Handles due sessions: emits the changed ones. Closed sessions will not come again."""

    def _give_out_due(self) -> None:
        due = self._sessions.take_due(self._entry.time)
        if due is not None and len(due):
            self._give_out(due)


class SessionAggregate(SessionOperator):
    """Emits keys, `window_start`, `window_end`, `window_time`, aggregates; sorted by start, key."""

    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: SessionWindows,
        aggregates: Mapping[str, Aggregate],
        lateness_ms: int = 0,
    ) -> None:
        super().__init__(keys, time_column, windows, lateness_ms)
        self._aggregates = dict(aggregates)

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        self._check_input(inputs[0])
        check_distinct([*self._keys, *BOUNDS, *self._aggregates])
        return bounded_schema(self._accumulated(inputs[0]).output_schema, len(self._keys))

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        self._aggregation = self._accumulated(inputs[0])
        super().open(context, inputs)

    def _accumulated(self, schema: pa.Schema) -> Aggregation:
        return Aggregation.of(self._keys, self._aggregates, schema)

    def _take_in(self, rows: pa.RecordBatch, times_ms: Longs) -> list[Values]:
        return self._aggregation.lift(rows)

    def _give_out(self, due: Sessions) -> None:
        changed = due.changed()
        results = with_bounds(
            self._aggregation.results(changed.keys, changed.accumulated),
            len(self._keys),
            changed.first_ms,
            changed.last_ms + self._gap_ms,
        )
        for piece in in_slices(in_order(results, (WINDOW_START, *self._keys))):
            self.context.collect(piece)


class SessionRows(SessionOperator):
    def __init__(
        self,
        keys: tuple[str, ...],
        time_column: str,
        windows: SessionWindows,
        function: WindowFunction,
        schema: pa.Schema,
        lateness_ms: int = 0,
    ) -> None:
        super().__init__(keys, time_column, windows, lateness_ms)
        self._function = function
        self._schema = schema

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        self._check_input(inputs[0])
        return self._schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._rows = PaneRows(context.state, "rows", inputs[0], self._keys, self._time_column)
        self._calls = WindowCalls(self._function, self._schema, self._keys, context)

    def _accumulated(self, schema: pa.Schema) -> Aggregation:
        return Aggregation(pa.schema([schema.field(key) for key in self._keys]), ())

    def _take_in(self, rows: pa.RecordBatch, times_ms: Longs) -> list[Values]:
        self._add(rows, times_ms)
        return []

    def _give_out(self, due: Sessions) -> None:
        rows = self._rows.take_rows(int(due.last_ms.max()))
        times = longs(rows.column(self._time_column))
        session = due.of_rows(rows, times)
        is_due, is_called, stays = session != NO_RUN, session != NO_RUN, session == NO_RUN
        is_called[is_due] = due.is_changed[session[is_due]]
        stays[is_due] = ~due.is_closed[session[is_due]]
        called = session[is_called]
        starts, ends = due.first_ms[called], due.last_ms[called] + self._gap_ms
        self._calls.on_rows(rows.filter(pa.array(is_called)), starts, ends)
        self._add(rows.filter(pa.array(stays)), times[stays])

    def _add(self, rows: pa.RecordBatch, times_ms: Longs) -> None:
        self._rows.add(rows, times_ms - times_ms % self._gap_ms)
