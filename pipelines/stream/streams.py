"""A stream: each method adds one operator and returns what it emits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from pipelines.connectors.in_process import Collect, Print
from pipelines.connectors.sink import Sink
from pipelines.connectors.watermark_strategy import bounded_out_of_orderness
from pipelines.domain.errors import Rejected
from pipelines.domain.graph import Connection, EdgeKind
from pipelines.domain.ids import Uid
from pipelines.operators.asynchronous.async_map import AsyncMapBatches, AsyncMapRows
from pipelines.operators.asynchronous.request_loop import AsyncCall, AsyncFunction, RequestPolicy
from pipelines.operators.event_time import AssignTimestamps
from pipelines.operators.joining.stream_join import Interval
from pipelines.operators.joining.window_join import NO_SUFFIXES, JoinKind
from pipelines.operators.operator import SideOutput
from pipelines.operators.processing.process import BatchProcessFunction, Process
from pipelines.operators.stateless import (
    AsRecords,
    BatchFunction,
    BatchFunctionWithSides,
    BatchMapping,
    BatchMappingWithSides,
    CheckKeys,
    Filter,
    FilterRows,
    FlatMapRows,
    FlatMapRowsWithSides,
    MapRows,
    PandasFunction,
    PandasMapping,
    PassOn,
    Predicate,
    RowFlatMapping,
    RowFlatMappingWithSides,
    RowMapping,
    RowPredicate,
)
from pipelines.operators.windowing.processing_time import ProcessingTimeWindows
from pipelines.operators.windowing.windows import Windows
from pipelines.stream.joins import (
    JoinInputs,
    join_for_ever,
    join_in_interval,
    join_in_windows,
    join_to_newest,
    join_to_versions,
)
from pipelines.stream.keyed import ConnectedStreams, KeyedStream, WindowedStream, check_together
from pipelines.stream.pipeline import naming
from pipelines.stream.ranking import distinct_rows

NO_TIME = timedelta(0)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.operators.operator import Operator
    from pipelines.stream.environment import Environment


@dataclass(frozen=True, slots=True)
class Stream:
    """The output of one node. `time_column` is its event time, if it has one."""

    environment: "Environment"
    node: Uid
    time_column: str | None
    unkeyed: EdgeKind = EdgeKind.FORWARD  # how it reaches a reader that needs no key
    is_anchored: bool = True
    dealt_by: tuple[str, ...] = ()  # each row is in the subtask that owns its key in these columns

    @property
    def schema(self) -> pa.Schema:
        return self.environment.schema_of(self.node)

    @property
    def is_changelog(self) -> bool:
        """Returns True if the stream takes rows back: its column `row_kind` is `+I` or `-D`."""
        return self.environment.emits_changes(self.node)

    def connection(self, hash_by: tuple[str, ...] | None = None) -> Connection:
        stays = bool(hash_by) and hash_by == self.dealt_by and self.unkeyed is EdgeKind.FORWARD
        return Connection(
            self.node,
            None if stays else hash_by,
            self.unkeyed,
            is_anchored=self.is_anchored,
            time_column=self.time_column,
            keeps_order_of=self.dealt_by if stays else (),
        )

    def derived(self, node: Uid, time_column: str | None) -> "Stream":
        """Returns the output of another node that reads this stream."""
        return Stream(self.environment, node, time_column)

    def filter(self, predicate: Predicate, *, uid: str) -> "Stream":
        """Keep the rows where a pyarrow expression, or a function of the batch, is true."""
        return self._chained(uid, lambda: Filter(predicate), self.time_column)

    @overload
    def map_batches(
        self, function: BatchMapping, schema: pa.Schema, *, side_outputs: None = None, uid: str
    ) -> "Stream": ...

    @overload
    def map_batches(
        self,
        function: BatchMappingWithSides,
        schema: pa.Schema,
        *,
        side_outputs: Mapping[str, SideOutput],
        uid: str,
    ) -> "Stream": ...

    def map_batches(
        self,
        function: Any,
        schema: pa.Schema,
        *,
        side_outputs: Mapping[str, SideOutput] | None = None,
        uid: str,
    ) -> "Stream":
        """Arrow batch in, Arrow batch of `schema` out. Event time stays if its column does.

        With `side_outputs`, the function gets a second argument, `sides`, and may also emit
        batches with `sides.output(name, batch)`. Read them with
        `result.side_output(name, uid=...)`.
        """
        create = lambda: BatchFunction(function, schema)  # noqa: E731
        if side_outputs is not None:
            declared = side_outputs
            create = lambda: BatchFunctionWithSides(function, schema, declared)  # noqa: E731
        return self._chained(uid, create, self._time_in(schema))

    def map_pandas(self, function: PandasMapping, schema: pa.Schema, *, uid: str) -> "Stream":
        """DataFrame in, DataFrame of `schema` out; `map_batches` saves the conversion.

        The function gets the rows of one batch, and must not depend on which rows share a batch.
        Event time stays if its column does. Raises Rejected if pandas is not installed.
        """
        return self._chained(uid, lambda: PandasFunction(function, schema), self._time_in(schema))

    def map(self, function: RowMapping, schema: pa.Schema, *, uid: str) -> "Stream":
        """Row in, row of `schema` out, as dictionaries; `map_batches` is much faster."""
        return self._chained(uid, lambda: MapRows(function, schema), self._time_in(schema))

    @overload
    def flat_map(
        self, function: RowFlatMapping, schema: pa.Schema, *, side_outputs: None = None, uid: str
    ) -> "Stream": ...

    @overload
    def flat_map(
        self,
        function: RowFlatMappingWithSides,
        schema: pa.Schema,
        *,
        side_outputs: Mapping[str, SideOutput],
        uid: str,
    ) -> "Stream": ...

    def flat_map(
        self,
        function: Any,
        schema: pa.Schema,
        *,
        side_outputs: Mapping[str, SideOutput] | None = None,
        uid: str,
    ) -> "Stream":
        """Row in, any number of rows of `schema` out; `map_batches` is much faster.

        With `side_outputs`, the function gets a second argument, `sides`, and may also emit rows
        with `sides.output(name, row)`. Read them with `result.side_output(name, uid=...)`.
        """
        create = lambda: FlatMapRows(function, schema)  # noqa: E731
        if side_outputs is not None:
            declared = side_outputs
            create = lambda: FlatMapRowsWithSides(function, schema, declared)  # noqa: E731
        return self._chained(uid, create, self._time_in(schema))

    def filter_rows(self, predicate: RowPredicate, *, uid: str) -> "Stream":
        """Keep the rows for which a function of the row is true; `filter` is much faster."""
        return self._chained(uid, lambda: FilterRows(predicate), self.time_column)

    def process(self, function: BatchProcessFunction, schema: pa.Schema, *, uid: str) -> "Stream":
        """Call a function with operator state; for keyed state and timers, call `key_by` first."""
        time = self._time_in(schema)
        return self._chained(uid, lambda: Process(function, ((),), schema, uid), time)

    def as_records(self, *, uid: str) -> "Stream":
        """Read each change of a changelog as a record; `row_kind` becomes an ordinary column."""
        return self._chained(uid, AsRecords, self.time_column)

    def assign_timestamps(
        self,
        column: str,
        *,
        out_of_orderness: timedelta = NO_TIME,
        idle_after: timedelta | None = None,
        uid: str,
    ) -> "Stream":
        """Take the event time from a column: a timestamp, or integer milliseconds since 1970.

        Replaces the event time that the stream had, if any; the column becomes a timestamp in UTC.
        A record may lie at most `out_of_orderness` behind newer ones. A subtask that is silent for
        `idle_after` does not hold back the watermark until its next record.

        Each subtask has one event time for all splits that it reads. If it reads several files one
        after the other, `out_of_orderness` must cover the time between them. A source that can
        name its event time column needs no such allowance, because it keeps the time of each split.
        """
        with naming(uid):
            strategy = bounded_out_of_orderness(out_of_orderness)
            if idle_after is not None:
                strategy = strategy.with_idleness(idle_after)
        idle_after_ms = strategy.idle_after_ms
        create = strategy.bounded
        return self._chained(uid, lambda: AssignTimestamps(column, create, idle_after_ms), column)

    def map_async(
        self,
        function: AsyncCall | AsyncFunction,
        schema: pa.Schema,
        *,
        uid: str,
        capacity: int = 100,
        timeout: timedelta = timedelta(seconds=30),
        ordered: bool = True,
        retries: int = 0,
        retry_delay: timedelta = timedelta(milliseconds=100),
        retry_on: tuple[type[Exception], ...] = (Exception,),
        timed_out: RowMapping | None = None,
    ) -> "Stream":
        """Row in, row of `schema` out, through an `async def` that asks another service.

        Each subtask has up to `capacity` requests under way at a time. A checkpoint contains the
        requests whose results are not emitted yet, and a restore sends them again. So the service
        may see a request twice, but the output contains each result once. The watermark waits for
        the results of earlier rows.

        Args:
            function: an `async def` of a row, or an `AsyncFunction`, which can open a client.
            schema: the columns of the returned row. Event time stays if its column does.
            capacity: a subtask with this many requests takes no further input.
            timeout: the limit for one request, with all its retries. After it, the run fails, and
                the error names the record.
            ordered: if False, results leave as they come, which is faster if their times differ.
            retries: how often a request that raised one of `retry_on` is repeated.
            retry_delay: the delay before the first retry; it doubles each time, up to 30 s.
            timed_out: a function of the row that gives the result of a request that timed out.
        """
        policy = RequestPolicy(
            capacity=capacity,
            timeout=timeout,
            is_ordered=ordered,
            retries=retries,
            retry_delay=retry_delay,
            retry_on=retry_on,
            timed_out=timed_out,
        )
        time = self._time_in(schema)
        return self._chained(uid, lambda: AsyncMapRows(function, schema, policy), time)

    def map_batches_async(
        self,
        function: AsyncCall | AsyncFunction,
        schema: pa.Schema,
        *,
        uid: str,
        capacity: int = 4,
        timeout: timedelta = timedelta(seconds=30),
        ordered: bool = True,
        retries: int = 0,
        retry_delay: timedelta = timedelta(milliseconds=100),
        retry_on: tuple[type[Exception], ...] = (Exception,),
        timed_out: BatchMapping | None = None,
    ) -> "Stream":
        """Like `map_async`, but with one request for each Arrow batch.

        Use it for services that take many rows at a time. The function returns a batch of `schema`,
        of any length.
        """
        policy = RequestPolicy(
            capacity=capacity,
            timeout=timeout,
            is_ordered=ordered,
            retries=retries,
            retry_delay=retry_delay,
            retry_on=retry_on,
            timed_out=timed_out,
        )
        time = self._time_in(schema)
        return self._chained(uid, lambda: AsyncMapBatches(function, schema, policy), time)

    def parallelism(self, subtasks: int) -> "Stream":
        """Set the number of subtasks of this stream's operator: Flink's `setParallelism`.

        Without it, an operator has the parallelism of the run. A rescale changes the parallelism of
        the run, and leaves this one as it is. Between operators with different parallelisms,
        records without a key go to the subtasks in turn, so they lose their order.
        """
        if self.unkeyed is not EdgeKind.FORWARD:
            raise Rejected(
                f"Call parallelism() directly behind {self.node!r}, before rebalance() and"
                " broadcast(): it says how many subtasks that operator has."
            )
        self.environment.set_parallelism(self.node, subtasks)
        return self

    def key_by(self, *columns: str) -> KeyedStream:
        return KeyedStream(self, columns)

    def reinterpret_as_keyed(self, *columns: str, uid: str) -> KeyedStream:
        """Like `key_by`, for rows that are already in the subtask that owns their key.

        No row travels. Use it behind a join, a ranking or another operator that is keyed by these
        columns, if the steps in between do not change them. Each row is checked: one whose key
        belongs to another subtask ends the run with an error. Flink: `reinterpretAsKeyedStream`.
        """
        node = self.environment.add_operator(
            uid, lambda: CheckKeys(columns), (self.connection(),), follows_input=True
        )
        checked = self.derived(node, self.time_column)
        return KeyedStream(replace(checked, dealt_by=columns), columns)

    def window_all(self, windows: Windows | ProcessingTimeWindows) -> WindowedStream:
        """Cut the whole stream into windows: one subtask gets all records, at any parallelism."""
        return WindowedStream.of(self, (), windows)

    def rebalance(self) -> "Stream":
        """Deal the records in turn, so that the next operator's subtasks get equal shares."""
        return replace(self, unkeyed=EdgeKind.REBALANCE)

    def broadcast(self) -> "Stream":
        """Send every record to every subtask of the next operator."""
        return replace(self, unkeyed=EdgeKind.BROADCAST)

    def unanchored(self) -> "Stream":
        """In checkpointing mode ACKED, do not track what the next operator makes of this stream.

        No acker waits for those records, so they may be lost. Has no effect in the other modes.
        """
        return replace(self, is_anchored=False)

    def union(self, *others: "Stream", uid: str) -> "Stream":
        """Unite the records of these streams, in no order; the slowest one sets the event time."""
        streams = (self, *others)
        check_together(uid, *streams)
        inputs = tuple(stream.connection() for stream in streams)
        node = self.environment.add_operator(uid, PassOn, inputs)
        times = [stream.time_column for stream in streams]
        if len(set(times)) > 1:
            raise Rejected(f"{uid!r} unites streams with different event times: {times}.")
        return self.derived(node, times[0])

    def distinct(self, *columns: str, uid: str) -> "Stream":
        """Emit each combination of values of these columns once, or of all columns by default."""
        return distinct_rows(self, columns, uid)

    def connect(self, other: "Stream") -> ConnectedStreams:
        """Connects two streams of any schemas to one operator, which receives them separately."""
        return ConnectedStreams(self, other, self.connection(), other.connection())

    def join(
        self,
        other: "Stream",
        *,
        on: list[str],
        window: Windows | None = None,
        how: str = "inner",
        ttl: timedelta | None = None,
        suffixes: tuple[str, str] = NO_SUFFIXES,
        names_window: bool = False,
        uid: str,
    ) -> "Stream":
        """Join on equal columns; `how` is inner, left, right or full; every pair counts.

        With a window, rows meet within one window of event time, and outer joins only add rows. The
        rows of both sides together form a session. The join emits the pairs when the window ends.
        After an inner join in tumbling windows, a pair has the event time of its left row. That
        suits the same windows behind it, but in sessions or an interval the pairs may be late.
        The other joins, and every join with `names_window`, name their window, and use its end as
        the time.
        Without a window, both sides are kept for ever. An outer join then takes back a row that it
        emitted without a partner: its column `row_kind` is `+I` or `-D`, as in Flink. With a `ttl`,
        an inner join forgets each row that long after it came.
        `suffixes` are added to the names of other columns that both sides have, as in pandas.
        """
        inputs = self._joined(other, on, suffixes, uid)
        with naming(uid):
            kind = JoinKind.of(how)
        if window is None:
            if names_window:
                raise Rejected(f"{uid!r} joins without a window; leave out names_window.")
            return join_for_ever(inputs, kind, ttl)
        if ttl is not None:
            raise Rejected(f"{uid!r} joins within windows, which end by themselves: leave out ttl.")
        return join_in_windows(inputs, window, kind, names_window=names_window)

    def interval_join(
        self,
        other: "Stream",
        *,
        on: list[str],
        lower: timedelta,
        upper: timedelta,
        suffixes: tuple[str, str] = NO_SUFFIXES,
        uid: str,
    ) -> "Stream":
        """Inner join with the rows of `other` from `lower` to `upper` after a row's event time.

        Both bounds are included. The event time of a pair, `join_time`, is the later of its times.
        `suffixes` are added to the names of other columns that both sides have.
        """
        inputs = self._joined(other, on, suffixes, uid)
        with naming(uid):
            interval = Interval.of(lower, upper)
        return join_in_interval(inputs, interval)

    def temporal_join(
        self,
        table: "Stream",
        *,
        on: list[str],
        how: str = "inner",
        in_processing_time: bool = False,
        suffixes: tuple[str, str] = NO_SUFFIXES,
        uid: str,
    ) -> "Stream":
        """Join each row to the version of its key in a changing table; `how` is inner or left.

        Each row of `table` is a version of its key, from its event time until that of the next
        one. A row of this stream waits until the event time of both streams has reached it, and
        then takes the version of its time. A silent table holds rows back: give the table's source
        an idleness timeout.
        With `in_processing_time`, a row takes at once the version that arrived last.
        `suffixes` are added to the names of other columns that both sides have.
        """
        inputs = self._joined(table, on, suffixes, uid)
        with naming(uid):
            kind = JoinKind.of(how)
        if in_processing_time:
            return join_to_newest(inputs, kind)
        return join_to_versions(inputs, kind)

    def _joined(
        self, other: "Stream", on: list[str], suffixes: tuple[str, str], uid: str
    ) -> JoinInputs:
        check_together(uid, self, other)
        return JoinInputs(left=self, right=other, on=tuple(on), suffixes=suffixes, uid=uid)

    def side_output(self, name: str, *, uid: str) -> "Stream":
        """Read a side output of this stream's operator: late rows, or what its function emits.

        Raises Rejected if the operator has no side output of that name.
        """
        environment = self.environment
        time_column = environment.side_output_of(self.node, name).time_column
        node = environment.add_operator(
            uid, PassOn, (Connection(self.node, side=name),), follows_input=True
        )
        return self.derived(node, time_column)

    def sink(self, sink: Sink, *, uid: str, parallelism: int | None = None) -> "Stream":
        """Write this stream to a sink. Returns the stream, so that it can go into another sink too.

        `parallelism` is the number of subtasks of the sink; None means the parallelism of the run.
        """
        self.environment.add_sink(uid, sink, self.connection(), parallelism)
        return self

    def collect(self, *, uid: str, parallelism: int | None = None) -> "Stream":
        """Keep the rows in this process, for the result of `run_local`; other runs refuse it."""
        return self.sink(Collect(), uid=uid, parallelism=parallelism)

    def print(self, *, uid: str, prefix: str = "", parallelism: int | None = None) -> "Stream":
        """Print each row to the standard output of the process that hosts the subtask."""
        return self.sink(Print(prefix), uid=uid, parallelism=parallelism)

    def _time_in(self, schema: pa.Schema) -> str | None:
        """Event time stays with a function's output if its column does."""
        return self.time_column if self.time_column in schema.names else None

    def _chained(
        self, uid: str, create: "Callable[[], Operator]", time_column: str | None
    ) -> "Stream":
        return self.derived(
            self.environment.add_operator(uid, create, (self.connection(),)), time_column
        )
