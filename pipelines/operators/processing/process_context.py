"""A process function's states, timers, time and output. One per operator and subtask."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import Redistribution
from pipelines.operators.batch_function import check_declared
from pipelines.operators.columns import Groups, group
from pipelines.operators.operator import OperatorContext
from pipelines.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pipelines.state.entries import KeyedStateContext
from pipelines.state.keyed_states import KeyedStates
from pipelines.state.list_state import ListState
from pipelines.state.map_state import MapState
from pipelines.state.operator_states import BroadcastState, OperatorListState
from pipelines.state.timers import TimeDomain, Timers
from pipelines.state.value_state import FoldingState, ValueState


class ProcessContext:
    """`key` holds the columns of the stream's key, `output` the columns that may be collected.

    Without a key there are no keyed states and no timers.
    """

    def __init__(self, context: OperatorContext, key: pa.Schema, output: pa.Schema) -> None:
        self._context = context
        self._key = key
        self._output = output
        self.key_columns: tuple[str, ...] = tuple(key.names)
        """Where the current input has the key; empty if its records are broadcast."""
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
        """Raises Rejected, like those below, if the name is taken or the type unusable."""
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
        """A list of the subtask's own; a restore at another parallelism deals it round robin."""
        return self._context.operator_state.list_of(descriptor, Redistribution.SPLIT)

    def get_operator_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """After a restore every subtask has the elements of all."""
        return self._context.operator_state.list_of(descriptor, Redistribution.UNION)

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """The same map in every subtask; only broadcast records may change it."""
        return self._context.operator_state.broadcast(descriptor)

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
        """The key of each record, for states and timers. Raises Rejected if there is no key."""
        if not self.key_columns:
            raise Rejected(f"The records that {self._context.uid!r} was given have no key.")
        return pa.RecordBatch.from_arrays(
            [batch.column(name) for name in self.key_columns], schema=self._key
        )

    def group(self, batch: pa.RecordBatch) -> Groups:
        """The distinct keys of a batch, and the key of each record."""
        return group(self.keys(batch), self._key.names)

    def collect(self, batch: pa.RecordBatch) -> None:
        """Raises Rejected if the columns of the batch are not the declared ones."""
        self._check_may_emit()
        check_declared(self._context.uid, batch.schema, self._output)
        self._context.collect(batch)

    def collect_side(self, name: str, batch: pa.RecordBatch) -> None:
        self._check_may_emit()
        self._context.collect_side(name, batch)

    def count(self, name: str, increment: int = 1) -> None:
        """Adds to a counter of the operator, which is in its metrics and in every snapshot."""
        self._context.count(name, increment)

    @contextmanager
    def emitting_nothing(self) -> Iterator[None]:
        """Refuses everything that is emitted within this context."""
        self._may_emit = False
        try:
            yield
        finally:
            self._may_emit = True

    def _check_may_emit(self) -> None:
        if not self._may_emit:
            raise Rejected(
                f"{self._context.uid!r} emits while its state is restored or cut, or while it is"
                " told of a checkpoint: that would be lost or come again after a failure. Emit for"
                " a record or a timer."
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
