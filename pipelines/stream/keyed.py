"""Streams that have a key: keyed, cut into windows, or connected with another stream.

A keyed stream offers windows, running totals, and functions with state. A windowed stream is a
keyed stream that is cut into windows. Connected streams are two streams that enter one operator.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.graph import Connection, EdgeKind
from pipelines.operators.aggregating.aggregates import Aggregate
from pipelines.operators.aggregating.aggregation import Aggregation, KeyedAggregate, LocalAggregate
from pipelines.operators.aggregating.changelog_aggregate import ChangelogAggregate, needs_values
from pipelines.operators.columns import field_of
from pipelines.operators.operator import Operator
from pipelines.operators.processing.process import (
    BatchProcessFunction,
    KeyedProcessFunction,
    Process,
    Reduce,
    ReduceFunction,
)
from pipelines.operators.ranking.ranked_rows import Order
from pipelines.operators.stateless import BatchMapping, ConnectedFunctions
from pipelines.operators.windowing.around import ONE_KEY, Around, WithOneKey
from pipelines.operators.windowing.combining import CombineInPanes
from pipelines.operators.windowing.count_windows import (
    CountWindowAggregate,
    CountWindows,
    count_windows,
)
from pipelines.operators.windowing.distinct_counts import (
    DistinctSessionAggregate,
    DistinctWindowAggregate,
    counted_columns,
)
from pipelines.operators.windowing.processing_time import (
    PROCESSING_TIME,
    InProcessingTime,
    ProcessingTimeWindows,
)
from pipelines.operators.windowing.sessions import SessionAggregate, SessionRows
from pipelines.operators.windowing.triggers import (
    Purging,
    Trigger,
    TriggeredAggregate,
    with_row_count,
)
from pipelines.operators.windowing.window_aggregate import (
    WindowAggregate,
    WindowFunction,
    WindowRows,
)
from pipelines.operators.windowing.windows import (
    BOUNDS,
    WINDOW_START,
    WINDOW_TIME,
    AlignedWindows,
    SessionWindows,
    Windows,
)
from pipelines.stream.pipeline import naming
from pipelines.stream.ranking import (
    LOCAL_SUFFIX,
    best_row,
    deduplicated,
    first_rows,
    first_rows_of_windows,
    with_marks,
)

if TYPE_CHECKING:
    from pipelines.stream.streams import Stream


WHOLE_SUFFIX = ".whole"
"""The suffix of the step before the exchange, added to the uid of windows over a whole stream."""


@dataclass(frozen=True, slots=True)
class WindowedStream:
    """A stream cut into windows; read late rows with `result.side_output("late", uid=...)`.

    Late rows are also counted. Without `keys`, the windows hold the whole stream, and one subtask
    works on them.
    """

    stream: "Stream"
    keys: tuple[str, ...]
    windows: Windows
    lateness_ms: int = 0
    is_in_processing_time: bool = False
    trigger_before_end: Trigger | None = None

    @classmethod
    def of(
        cls,
        stream: "Stream",
        keys: tuple[str, ...],
        windows: Windows | ProcessingTimeWindows,
    ) -> "WindowedStream":
        if isinstance(windows, ProcessingTimeWindows):
            return cls(stream, keys, windows.windows, is_in_processing_time=True)
        return cls(stream, keys, windows)

    def allowed_lateness(self, lateness: timedelta) -> "WindowedStream":
        """Keeps windows that long after their end; each row that then comes updates the result.

        An updated result is complete and comes after the earlier one, so a sink can upsert it.
        """
        lateness_ms = lateness // timedelta(milliseconds=1)
        if lateness_ms < 0:
            raise Rejected(f"A lateness of {lateness_ms} ms cannot be allowed; give 0 or more.")
        if self.is_in_processing_time and lateness_ms:
            raise Rejected("In processing time no record is late: leave out allowed_lateness.")
        return replace(self, lateness_ms=lateness_ms)

    def trigger(self, trigger: Trigger) -> "WindowedStream":
        """Windows fire when the trigger says so, and again at their end if they have changed.

        Each result is complete and replaces the earlier one of its key and window. If the trigger
        purges, the results add up instead. Works for `aggregate` with tumbling and sliding windows
        of event time.
        """
        if self.is_in_processing_time or isinstance(self.windows, SessionWindows):
            raise Rejected("A trigger needs tumbling or sliding windows of event time.")
        return replace(self, trigger_before_end=trigger)

    def aggregate(
        self,
        aggregates: Mapping[str, Aggregate] | None = None,
        /,
        *,
        uid: str,
        **named: Aggregate,
    ) -> "Stream":
        """Emits keys, the window and one column per aggregate, once per key and window.

        `window_start` names a tumbling window and is the event time of its result. Any other window
        has `window_start`, `window_end`, and as the event time `window_time`, its last millisecond.
        A mapping gives columns any name; keywords are shorter.
        """
        keys, windows, late = self.operator_keys, self.windows, self.lateness_ms
        every, time = all_named(aggregates, named, uid), self.operator_time
        counts_values = bool(counted_columns(every))
        if isinstance(windows, SessionWindows):
            sessions = windows
            of_sessions = DistinctSessionAggregate if counts_values else SessionAggregate
            merged = self.added(
                uid, lambda: of_sessions(keys, time, sessions, every, late), WINDOW_TIME
            )
            self._note_updates(merged)
            return merged
        aligned = windows
        if self.trigger_before_end is not None:
            return self._triggered(self.trigger_before_end, aligned, every, uid)
        of_windows = DistinctWindowAggregate if counts_values else WindowAggregate
        results = self.added(
            uid,
            lambda: of_windows(keys, time, aligned, every, late),
            WINDOW_START if aligned.is_tumbling else WINDOW_TIME,
        )
        self._note_updates(results)
        if not counts_values and not self.is_in_processing_time:
            self.stream.environment.combine_before(
                results.node, lambda: CombineInPanes(keys, time, aligned, every)
            )
        return results

    def _triggered(
        self, trigger: Trigger, windows: AlignedWindows, every: dict[str, Aggregate], uid: str
    ) -> "Stream":
        keys, time, late = self.operator_keys, self.operator_time, self.lateness_ms
        if counted_columns(every):
            raise Rejected(f"{uid!r} has a trigger; count_distinct is not possible with one.")
        results = self.added(
            uid,
            lambda: TriggeredAggregate(keys, time, windows, every, trigger, late),
            WINDOW_START if windows.is_tumbling else WINDOW_TIME,
        )
        self.stream.environment.combine_before(
            results.node, lambda: CombineInPanes(keys, time, windows, with_row_count(every))
        )
        self._note_updates(results)
        return results

    def _note_updates(self, results: "Stream") -> None:
        """Notes that a window that fires again, early or for late rows, replaces its result."""
        fires_again = self.lateness_ms or self.trigger_before_end is not None
        if fires_again and not isinstance(self.trigger_before_end, Purging):
            bounds = [each for each in BOUNDS if each in results.schema.names]
            is_fixed = not isinstance(self.windows, SessionWindows)  # late rows make sessions grow
            self.stream.environment.note_updates(
                results.node, (*self.keys, *bounds) if is_fixed else None
            )

    def top_n(
        self,
        n: int,
        *,
        order_by: str,
        descending: bool = True,
        rank: str | None = None,
        uid: str,
    ) -> "Stream":
        """Emits the first `n` rows of each key and window once, when the window ends.

        The columns are the keys, the window as in `aggregate`, the others, and the rank from 1 if
        `rank` names a column for it. Among equal rows the oldest comes first; nulls come last.
        """
        return first_rows_of_windows(self, Order(order_by, descending), n, rank, uid)

    def min_by(self, column: str, *, uid: str) -> "Stream":
        """Emits the row with the least value of each key and window once, when the window ends."""
        return first_rows_of_windows(self, Order(column), 1, None, uid)

    def max_by(self, column: str, *, uid: str) -> "Stream":
        """Emits the row with the greatest value of each key and window once, when it ends."""
        return first_rows_of_windows(self, Order(column, descending=True), 1, None, uid)

    def apply(
        self,
        function: WindowFunction,
        schema: pa.Schema,
        *,
        uid: str,
        time_column: str | None = None,
    ) -> "Stream":
        """Call a function with all rows of each key and window; it returns rows of `schema`.

        It makes one Python call per key and window, and keeps every row until its windows are
        closed. Where an aggregate will do, it costs far less. `time_column` is the event time of
        the rows that the function returns, if they have one. It must not lie before the window.
        """
        keys, windows, late = self.operator_keys, self.windows, self.lateness_ms
        if self.trigger_before_end is not None:
            raise Rejected(f"{uid!r} has a trigger, which only aggregate can have.")
        if self.is_in_processing_time and windows.overlap:
            raise Rejected(
                f"{uid!r} applies a function to windows of processing time that overlap, which is"
                " not possible. Use aggregate, or windows that do not overlap."
            )
        names, time = self.stream.schema.names, self.operator_time
        call: WindowFunction = lambda window, rows: function(  # noqa: E731
            window, rows.select(names)
        )
        if isinstance(windows, SessionWindows):
            sessions = windows
            return self.added(
                uid,
                lambda: SessionRows(keys, time, sessions, call, schema, late),
                time_column,
            )
        aligned = windows
        return self.added(
            uid, lambda: WindowRows(keys, time, aligned, call, schema, late), time_column
        )

    @property
    def operator_keys(self) -> tuple[str, ...]:
        """Returns the key of the operator over these windows; see `operators.windowing.around`."""
        return self.keys or (ONE_KEY,)

    @property
    def operator_time(self) -> str:
        """Returns that operator's event time. Raises Rejected if the stream has none."""
        return PROCESSING_TIME if self.is_in_processing_time else event_time_of(self.stream)

    def added(self, uid: str, create: Callable[[], Operator], time_column: str | None) -> "Stream":
        """Adds the operator that `create` makes for `operator_keys` and `operator_time`."""
        environment, windows = self.stream.environment, self.windows
        if self.is_in_processing_time:
            by_event_time = create
            create = lambda: InProcessingTime(by_event_time(), windows)  # noqa: E731
            time_column = None
        if self.keys:
            node = environment.add_operator(uid, create, (self.stream.connection(self.keys),))
            return self.stream.derived(node, time_column)
        by_one_key = create
        with_key = environment.add_operator(
            uid + WHOLE_SUFFIX,
            WithOneKey,
            (self.stream.connection(),),
            follows_input=self.stream.unkeyed is EdgeKind.FORWARD,
        )
        node = environment.add_operator(
            uid,
            lambda: Around(by_one_key(), ONE_KEY),
            (Connection(with_key, (ONE_KEY,), time_column=self.stream.time_column),),
        )
        return self.stream.derived(node, time_column)


@dataclass(frozen=True, slots=True)
class CountWindowedStream:
    """A keyed stream cut into windows of a number of rows."""

    stream: "Stream"
    keys: tuple[str, ...]
    windows: CountWindows

    def aggregate(
        self,
        aggregates: Mapping[str, Aggregate] | None = None,
        /,
        *,
        uid: str,
        **named: Aggregate,
    ) -> "Stream":
        """Emits keys and one column per aggregate, once per window, without an event time.

        No result contains the rows of a window that is not full when the input ends. The state
        keeps the number of rows of each key for ever.
        """
        keys, windows = self.keys, self.windows
        every = all_named(aggregates, named, uid)
        node = self.stream.environment.add_operator(
            uid,
            lambda: CountWindowAggregate(keys, windows, every),
            (self.stream.connection(keys),),
        )
        return self.stream.derived(node, None)


def all_named(
    aggregates: Mapping[str, Aggregate] | None, named: Mapping[str, Aggregate], uid: str
) -> dict[str, Aggregate]:
    """Merges the mapping and the keywords, in this order. Raises Rejected for a repeated name."""
    given = dict(aggregates or {})
    twice = sorted(given.keys() & named.keys())
    if twice:
        raise Rejected(
            f"{uid!r} names the column {twice[0]!r} in the mapping and as a keyword; give it once."
        )
    return {**given, **named}


def event_time_of(stream: "Stream") -> str:
    """Raises Rejected naming the stream if it has none."""
    if stream.time_column is None:
        raise Rejected(f"{stream.node!r} has no event time, so it cannot be put into windows.")
    return stream.time_column


@dataclass(frozen=True, slots=True)
class ConnectedStreams:
    """Two streams that enter one operator. Source: Flink's `ConnectedStreams`."""

    first: "Stream"
    second: "Stream"
    first_input: Connection
    second_input: Connection

    def key_by(self, first: list[str], second: list[str]) -> "ConnectedStreams":
        """Rows of both streams with equal keys meet in one subtask; columns are paired in order.

        Raises Rejected if the keys cannot be equal: their number of columns or their types differ.
        """
        types = [
            [field_of(stream.schema, column).type for column in columns]
            for stream, columns in ((self.first, first), (self.second, second))
        ]
        if types[0] != types[1]:
            raise Rejected(
                f"{self.first.node!r} and {self.second.node!r} cannot be connected by {first} and"
                f" {second}: the columns must be as many and have the same types."
            )
        return replace(
            self,
            first_input=self.first.connection(tuple(first)),
            second_input=self.second.connection(tuple(second)),
        )

    def map_batches(
        self, first: BatchMapping, second: BatchMapping, schema: pa.Schema, *, uid: str
    ) -> "Stream":
        """Call one function per stream; both return batches of `schema`.

        Event time stays if both streams have the same name for it and `schema` has that column.
        """
        check_together(uid, self.first, self.second)
        times = {self.first.time_column, self.second.time_column}
        time = self.first.time_column if len(times) == 1 else None
        node = self.first.environment.add_operator(
            uid,
            lambda: ConnectedFunctions(first, second, schema),
            (self.first_input, self.second_input),
        )
        return self.first.derived(node, time if time in schema.names else None)

    def process(
        self,
        function: BatchProcessFunction | KeyedProcessFunction,
        schema: pa.Schema,
        *,
        uid: str,
    ) -> "Stream":
        """Call one function for both streams, with state and timers of their common key.

        The first stream must have a key. The second has the same key, or is broadcast and then
        keeps a broadcast state (Flink: `KeyedCoProcessFunction`, `KeyedBroadcastProcessFunction`).
        Event time stays if the first stream's column does. Raises Rejected for other streams.
        """
        check_together(uid, self.first, self.second)
        keys = (self.first_input.hash_by or (), self.second_input.hash_by or ())
        is_broadcast = self.second_input.kind is EdgeKind.BROADCAST
        if not keys[0] or bool(keys[1]) is is_broadcast:
            raise Rejected(
                f"{uid!r} processes two streams: the first needs a key, and the second the same"
                " one or broadcast()."
            )
        node = self.first.environment.add_operator(
            uid,
            lambda: Process(function, keys, schema, uid),
            (self.first_input, self.second_input),
        )
        time = self.first.time_column
        return self.first.derived(node, time if time in schema.names else None)


def check_together(uid: str, *streams: "Stream") -> None:
    """Raises Rejected if the streams belong to several environments."""
    if any(stream.environment is not streams[0].environment for stream in streams):
        raise Rejected(f"{uid!r} joins streams of two environments; all must be of one.")


@dataclass(frozen=True, slots=True)
class KeyedStream:
    stream: "Stream"
    keys: tuple[str, ...]

    def connect(self, other: "Stream") -> ConnectedStreams:
        """Connects this stream, by its key, with a stream without one, as `other.broadcast()`."""
        own = replace(self.stream, dealt_by=())  # of two inputs, a keyed one is an exchange
        return ConnectedStreams(self.stream, other, own.connection(self.keys), other.connection())

    def window(self, windows: Windows | ProcessingTimeWindows) -> "WindowedStream":
        return WindowedStream.of(self.stream, self.keys, windows)

    def count_window(self, size: int, slide: int | None = None) -> "CountWindowedStream":
        """Windows of `size` rows of each key; one is complete every `slide` rows, or every `size`.

        The first windows of a key hold fewer rows if the slide is less than the size. Rows count in
        order of arrival. Raises Rejected unless both numbers are positive.
        """
        return CountWindowedStream(self.stream, self.keys, count_windows(size, slide))

    def process(
        self,
        function: BatchProcessFunction | KeyedProcessFunction,
        schema: pa.Schema,
        *,
        uid: str,
    ) -> "Stream":
        """Call a function with keyed state and timers, which emits rows of `schema`.

        Each subtask works with a copy of `function`. Event time stays if its column does.
        """
        node = self.stream.environment.add_operator(
            uid,
            lambda: Process(function, (self.keys,), schema, uid),
            (self.stream.connection(self.keys),),
        )
        time = self.stream.time_column
        return self.stream.derived(node, time if time in schema.names else None)

    def reduce(self, function: ReduceFunction, *, uid: str) -> "Stream":
        """Reduce the rows of each key to one; emit the row so far after every record.

        `function` takes the row so far and the next row, as dictionaries, and returns a row with
        the same columns and key. It is called for each record; `aggregate` is much faster.
        """
        node = self.stream.environment.add_operator(
            uid, lambda: Reduce(self.keys, function), (self.stream.connection(self.keys),)
        )
        self.stream.environment.note_updates(node, self.keys)
        return self.stream.derived(node, None)

    def deduplicate(
        self,
        *,
        keep: str = "first",
        order_by: str | None = None,
        state_ttl: timedelta | None = None,
        uid: str,
    ) -> "Stream":
        """Keep one row of each key: the `first` or the `last`, by arrival or by `order_by`.

        The first by arrival is emitted once, and its key is forgotten after `state_ttl`, if given.
        Any other choice is a changelog, which takes a row back when another one displaces it. Among
        rows that are equal in the column `order_by`, `last` keeps the newest, `first` the oldest.
        """
        return deduplicated(self.stream, self.keys, keep, order_by, state_ttl, uid)

    def top_n(
        self,
        n: int,
        *,
        order_by: str,
        descending: bool = True,
        rank: str | None = None,
        uid: str,
    ) -> "Stream":
        """Keep the first `n` rows of each key in the order of a column, as a changelog.

        Among equal rows the oldest comes first; nulls come last. `rank` names a column for the
        rank, from 1; then a row that moves to another rank is taken back and added again. If you
        change `n`, change the uid. Running totals are refused: rank the results of windows instead.
        """
        with naming(uid):
            self.stream.environment.check_ranks_once(self.stream.node)
        order = Order(order_by, descending)
        return first_rows(self.stream, self.keys, order, n, rank, uid)

    def min_by(self, column: str, *, uid: str) -> "Stream":
        """Emit the row with the least value of each key, whenever there is a new one.

        As with a running total, the newest row of a key is the result. Equal rows keep the oldest.
        """
        return best_row(self.stream, self.keys, Order(column), uid)

    def max_by(self, column: str, *, uid: str) -> "Stream":
        """Emit the row with the greatest value of each key, whenever there is a new one."""
        return best_row(self.stream, self.keys, Order(column, descending=True), uid)

    def aggregate(
        self,
        aggregates: Mapping[str, Aggregate] | None = None,
        /,
        *,
        uid: str,
        **named: Aggregate,
    ) -> "Stream":
        """Running totals: each batch emits the new results of the keys that it touched.

        It combines records before the exchange wherever that makes them fewer. Results of a
        changelog count only the rows that are left; a key without rows has the count 0. For a
        changelog, `min`, `max` and `count_distinct` keep every value of each key.
        To aggregate running totals, put `deduplicate(keep="last")` by their key in front, so that
        each total counts once; without it they are refused.
        A mapping gives columns any name; keywords are shorter.
        """
        environment = self.stream.environment
        every = all_named(aggregates, named, uid)
        with naming(uid):
            environment.check_counts_once(self.stream.node)
        if self.stream.is_changelog and any(map(needs_values, every.values())):
            return self._aggregate_of_changes(every, uid)
        stream = with_marks(self.stream, self.keys, every, uid)
        with naming(uid):
            aggregation = Aggregation.of(
                self.keys, every, stream.schema, of_changes=stream.is_changelog
            )
        if stream.dealt_by == self.keys:
            node = environment.add_operator(
                uid, lambda: KeyedAggregate(aggregation), (stream.connection(self.keys),)
            )
        else:
            local = environment.add_operator(
                uid + LOCAL_SUFFIX,
                lambda: LocalAggregate(aggregation),
                (stream.connection(),),
                follows_input=stream.unkeyed is EdgeKind.FORWARD,
            )
            node = environment.add_operator(
                uid,
                lambda: KeyedAggregate(aggregation, merges_partials=True),
                (Connection(local, self.keys),),
            )
        environment.note_updates(node, self.keys)
        return self.stream.derived(node, None)

    def _aggregate_of_changes(self, every: dict[str, Aggregate], uid: str) -> "Stream":
        keys, environment = self.keys, self.stream.environment
        node = environment.add_operator(
            uid, lambda: ChangelogAggregate(keys, every), (self.stream.connection(keys),)
        )
        environment.note_updates(node, keys)
        return self.stream.derived(node, None)
