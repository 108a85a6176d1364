"""What a process function may use: states, timers, time, output. One per operator and subtask."""

import pyarrow as pa

from pipelines.operators.batch_function import check_declared
from pipelines.operators.grouping import Groups, group
from pipelines.operators.operator import OperatorContext
from pipelines.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pipelines.state.entries import KeyedStateContext
from pipelines.state.folding_state import FoldingState
from pipelines.state.keyed_states import KeyedStates
from pipelines.state.list_state import ListState
from pipelines.state.map_state import MapState
from pipelines.state.timers import TimeDomain, Timers
from pipelines.state.value_state import ValueState


class ProcessContext:
    """`key` holds the columns of the stream's key, `output` those of what may be collected."""

    def __init__(self, context: OperatorContext, key: pa.Schema, output: pa.Schema) -> None:
        self._context = context
        self._key = key
        self._output = output
        keyed = KeyedStateContext(context.state, key, context.now_ms)
        self.states = KeyedStates(keyed)
        self.event_timers = Timers(keyed, TimeDomain.EVENT_TIME)
        self.processing_timers = Timers(keyed, TimeDomain.PROCESSING_TIME)
        self.watermark_ms = context.restored_watermark_ms
        """Event time: no record with a timestamp up to this is expected any more."""

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Raises Rejected, like those below, for a name that is taken or an unusable type."""
        return self.states.value(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        return self.states.list(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        return self.states.map(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> FoldingState:
        return self.states.reducing(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> FoldingState:
        return self.states.aggregating(descriptor)

    def processing_time_ms(self) -> int:
        """Milliseconds since the epoch; never goes back, and jumps as the machine's clock does."""
        return self._context.now_ms()

    def keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The key of each record: what states and timers take."""
        return batch.select(self._key.names)

    def group(self, batch: pa.RecordBatch) -> Groups:
        """The distinct keys of a batch, and which of them each record has."""
        return group(batch, self._key.names)

    def collect(self, batch: pa.RecordBatch) -> None:
        """Raises Rejected when the batch has other columns than were declared."""
        check_declared(self._context.uid, batch.schema, self._output)
        self._context.collect(batch)

    def collect_side(self, name: str, batch: pa.RecordBatch) -> None:
        self._context.collect_side(name, batch)

    def count(self, name: str, increment: int = 1) -> None:
        """A counter of the operator: shown with its metrics, part of every snapshot."""
        self._context.count(name, increment)
