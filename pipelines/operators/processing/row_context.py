"""The contexts of a function with state: states of its keys, timers, time, and side outputs.

There is one context per operator and subtask. A function of batches works on all keys of a batch, a
row function on the current key.

Source: Flink's `RuntimeContext`, `KeyedProcessFunction.Context` and `TimerService`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.key_groups import Redistribution
from pipelines.operators.columns import Groups, group
from pipelines.operators.operator import OperatorContext, SideOutput
from pipelines.operators.processing.row_states import (
    CurrentKeys,
    RowAggregatingState,
    RowListState,
    RowMapState,
    RowReducingState,
    RowState,
    RowValueState,
)
from pipelines.operators.rows import Row, python_values
from pipelines.operators.side_outputs import BatchSides, RowSides
from pipelines.operators.stateless import check_declared
from pipelines.operators.user_metrics import OperatorMetrics
from pipelines.state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pipelines.state.entries import KeyedStateContext
from pipelines.state.keyed_backend import KeyedStates
from pipelines.state.list_state import ListState, MapState
from pipelines.state.operator_states import BroadcastState, OperatorListState
from pipelines.state.timers import TimeDomain, Timers
from pipelines.state.value_state import FoldingState, ValueState


class ProcessContext:
    """`key` holds the columns of the stream's key, `output` the columns that may be collected.

    Without a key there are no keyed states and no timers.
    """

    def __init__(
        self,
        context: OperatorContext,
        key: pa.Schema,
        output: pa.Schema,
        sides: Mapping[str, SideOutput],
    ) -> None:
        self._context = context
        self._sides = BatchSides(context.uid, sides, context.collect_side)
        self._key = key
        self._output = output
        self.key_columns: tuple[str, ...] = tuple(key.names)
        """The key's columns in the current input; empty if its records are broadcast."""
        self.watermark_ms = context.restored_watermark_ms
        """Event time: no record with a timestamp up to this is expected any more."""
        self._may_emit = True
        self.keyed: KeyedPart | None = None
        if len(key):
            keyed = KeyedStateContext(context.state, key, context.now_ms)
            self.keyed = KeyedPart(
                KeyedStates(keyed),
                Timers(keyed, TimeDomain.EVENT_TIME),
                Timers(keyed, TimeDomain.PROCESSING_TIME),
            )

    @property
    def states(self) -> KeyedStates:
        return self._keyed_part.states

    @property
    def event_timers(self) -> Timers:
        return self._keyed_part.event_timers

    @property
    def processing_timers(self) -> Timers:
        return self._keyed_part.processing_timers

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Raises Rejected, like the methods below, if the name is taken or the type unusable."""
        return self.states.value(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        return self.states.list(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        return self.states.map(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> FoldingState:
        return self.states.reducing(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> FoldingState:
        return self.states.aggregating(descriptor)

    def get_operator_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """The subtask's own list; a restore at another parallelism deals it out round robin."""
        return self._context.operator_state.list_of(descriptor, Redistribution.SPLIT)

    def get_operator_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """The subtask's own list; after a restore, every subtask has the elements of all lists."""
        return self._context.operator_state.list_of(descriptor, Redistribution.UNION)

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """The same map in every subtask; only broadcast records may change it."""
        return self._context.operator_state.broadcast(descriptor)

    @property
    def uid(self) -> Uid:
        return self._context.uid

    @property
    def subtask(self) -> int:
        return self._context.subtask

    @property
    def parallelism(self) -> int:
        return self._context.parallelism

    def processing_time_ms(self) -> int:
        """Milliseconds since the epoch; never goes back, and jumps as the machine's clock does."""
        return self._context.now_ms()

    def keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the key of each record, for states and timers. Raises Rejected if it has none."""
        if not self.key_columns:
            raise Rejected(f"The records that {self._context.uid!r} was given have no key.")
        return pa.RecordBatch.from_arrays(
            [batch.column(name) for name in self.key_columns], schema=self._key
        )

    def group(self, batch: pa.RecordBatch) -> Groups:
        """Returns the distinct keys of a batch, and the key of each record."""
        return group(self.keys(batch), self._key.names)

    def collect(self, batch: pa.RecordBatch) -> None:
        """Raises Rejected if the columns of the batch are not the declared ones."""
        self._check_may_emit()
        check_declared(self._context.uid, batch.schema, self._output)
        self._context.collect(batch)

    def output(self, name: str, batch: pa.RecordBatch) -> None:
        """Emits a batch into a side output; raises Rejected if the function did not declare it."""
        self._check_may_emit()
        self._sides.output(name, batch)

    def count(self, name: str, increment: int = 1) -> None:
        """Adds to a counter of the operator, which is in its metrics and in every snapshot."""
        self._context.count(name, increment)

    @property
    def metrics(self) -> OperatorMetrics:
        """Counters, gauges and histograms of this subtask; each attempt begins at zero."""
        return self._context.metrics

    @contextmanager
    def emitting_nothing(self) -> Iterator[None]:
        """Refuses all output within this context."""
        self._may_emit = False
        try:
            yield
        finally:
            self._may_emit = True

    def _check_may_emit(self) -> None:
        if not self._may_emit:
            raise Rejected(
                f"{self._context.uid!r} emits while its state is restored or cut, or while it is"
                " notified of a checkpoint: a failure would lose or repeat those rows. Emit only"
                " for a record or a timer."
            )

    @property
    def _keyed_part(self) -> "KeyedPart":
        if self.keyed is None:
            raise Rejected(
                f"{self._context.uid!r} asks for keyed state or timers, but its stream has no key;"
                " call key_by first."
            )
        return self.keyed


@dataclass(frozen=True, slots=True)
class KeyedPart:
    """The part of the context that needs keys."""

    states: KeyedStates
    event_timers: Timers
    processing_timers: Timers


_Kept = TypeVar("_Kept", bound=RowState)


class RuntimeContext:
    """Hands out states; you may ask for each once. Methods raise Rejected with the reason."""

    def __init__(self, context: ProcessContext, current: CurrentKeys) -> None:
        self._context = context
        self._current = current
        self.states: list[RowState] = []

    def get_state(self, descriptor: ValueStateDescriptor) -> RowValueState:
        state = self._context.states.value(descriptor)
        return self._kept(RowValueState(descriptor.name, self._current, state))

    def get_list_state(self, descriptor: ListStateDescriptor) -> RowListState:
        state = self._context.states.list(descriptor)
        return self._kept(RowListState(name=descriptor.name, current=self._current, state=state))

    def get_map_state(self, descriptor: MapStateDescriptor) -> RowMapState:
        state = self._context.states.map(descriptor)
        return self._kept(RowMapState(name=descriptor.name, current=self._current, state=state))

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> RowReducingState:
        state = self._context.states.accumulators(descriptor)
        name, reduce = descriptor.name, descriptor.reduce
        return self._kept(RowReducingState(name, self._current, state, reduce=reduce))

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> RowAggregatingState:
        name, aggregate = descriptor.name, descriptor.aggregate
        if not isinstance(aggregate, AggregateFunction):
            raise Rejected(
                f"The state {name!r} has a BatchAggregateFunction; a row function needs an"
                " AggregateFunction, which works on single values."
            )
        state = self._context.states.accumulators(descriptor)
        return self._kept(RowAggregatingState(name, self._current, state, aggregate=aggregate))

    def get_operator_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """See `ProcessContext` for this method and the next two."""
        return self._context.get_operator_list_state(descriptor)

    def get_operator_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        return self._context.get_operator_union_list_state(descriptor)

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        return self._context.get_broadcast_state(descriptor)

    @property
    def subtask(self) -> int:
        return self._context.subtask

    @property
    def parallelism(self) -> int:
        return self._context.parallelism

    @property
    def metrics(self) -> OperatorMetrics:
        """See `ProcessContext.metrics`."""
        return self._context.metrics

    def _kept(self, state: _Kept) -> _Kept:
        self.states.append(state)
        return state


@dataclass(slots=True)
class RowTimers:
    """The changes that a batch makes to timers of one kind; the last change of a timer wins."""

    timers: Timers
    current: CurrentKeys
    _changes: dict[tuple[int, int], bool] = field(default_factory=dict)

    def register(self, timestamp_ms: int) -> None:
        self._changes[self.current.index, timestamp_ms] = True

    def delete(self, timestamp_ms: int) -> None:
        self._changes[self.current.index, timestamp_ms] = False

    def flush(self) -> None:
        for is_registered, apply in ((False, self.timers.delete), (True, self.timers.register)):
            chosen = [timer for timer, kind in self._changes.items() if kind is is_registered]
            if chosen:
                moments = np.array([timestamp_ms for _, timestamp_ms in chosen], np.int64)
                apply(self.current.take(index for index, _ in chosen), moments)
        self._changes = {}


class TimerService:
    """Timers of the current key, once per key and timestamp. Times are milliseconds, UTC."""

    def __init__(self, context: ProcessContext, event: RowTimers, processing: RowTimers) -> None:
        self._context = context
        self._event = event
        self._processing = processing

    def current_watermark(self) -> int:
        return self._context.watermark_ms

    def current_processing_time(self) -> int:
        return self._context.processing_time_ms()

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Fires once the watermark has reached `timestamp_ms`."""
        self._event.register(timestamp_ms)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        self._processing.register(timestamp_ms)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        self._event.delete(timestamp_ms)

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        self._processing.delete(timestamp_ms)


class RowContext:
    """The context of one record or one timer."""

    def __init__(self, context: ProcessContext, current: CurrentKeys, sides: RowSides) -> None:
        event = RowTimers(context.event_timers, current)
        processing = RowTimers(context.processing_timers, current)
        self._context = context
        self._current = current
        self._sides = sides
        self._timers = (event, processing)
        self._service = TimerService(context, event, processing)
        self._keys: list[Any] = []
        self.time_domain: TimeDomain | None = None
        """The time domain of the timer that fires; None while a record is processed."""

    def get_current_key(self) -> Any:
        """The value of the key's column, or a tuple of values if there are several columns.

        Raises Rejected while a broadcast record is processed, because it has no key.
        """
        if not self._keys:
            raise Rejected("A broadcast record has no key.")
        return self._keys[self._current.index]

    def timer_service(self) -> TimerService:
        return self._service

    def output(self, name: str, row: Row) -> None:
        """Emits a row into a side output; raises Rejected if the function did not declare it."""
        self._sides.output(name, row)

    def count(self, name: str, increment: int = 1) -> None:
        """Adds to a counter of the operator, which is in its metrics and in every snapshot."""
        self._context.count(name, increment)

    @property
    def metrics(self) -> OperatorMetrics:
        """See `ProcessContext.metrics`."""
        return self._context.metrics

    def begin(self, keys: pa.RecordBatch) -> None:
        """The operator calls this; `keys` are the distinct keys of the batch that follows."""
        self._current.keys = keys
        columns = [python_values(column) for column in keys.columns]
        self._keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def begin_without_keys(self) -> None:
        """The operator calls this before broadcast records."""
        self._current.keys = None
        self._keys = []

    def flush(self) -> None:
        for timers in self._timers:
            timers.flush()
        self._sides.flush()
