"""The keyed states of one operator, by descriptor, and the removal of their expired entries.

Source: Flink's `RuntimeContext.getState` and its siblings; the handles work on batches of keys.
"""

from typing import Protocol, TypeVar

from pipelines.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pipelines.state.entries import CLEANED_PER_BATCH, KeyedStateContext, StateTtlConfig
from pipelines.state.list_state import ListState
from pipelines.state.map_state import MapState
from pipelines.state.value_state import (
    Accumulators,
    FoldingState,
    ValueState,
    accumulators,
    aggregating,
    reducing,
)


class _State(Protocol):
    def remove_expired(self, limit: int) -> None: ...


_Kept = TypeVar("_Kept", bound=_State)


class KeyedStates:
    """Each method raises Rejected if the name is taken or the type cannot be kept."""

    def __init__(self, context: KeyedStateContext) -> None:
        self._context = context
        self._expiring: list[_State] = []

    def value(self, descriptor: ValueStateDescriptor) -> ValueState:
        return self._kept(ValueState(self._context, descriptor), descriptor.ttl)

    def list(self, descriptor: ListStateDescriptor) -> ListState:
        return self._kept(ListState(self._context, descriptor), descriptor.ttl)

    def map(self, descriptor: MapStateDescriptor) -> MapState:
        return self._kept(MapState(self._context, descriptor), descriptor.ttl)

    def reducing(self, descriptor: ReducingStateDescriptor) -> FoldingState:
        return self._kept(reducing(self._context, descriptor), descriptor.ttl)

    def aggregating(self, descriptor: AggregatingStateDescriptor) -> FoldingState:
        return self._kept(aggregating(self._context, descriptor), descriptor.ttl)

    def accumulators(
        self, descriptor: ReducingStateDescriptor | AggregatingStateDescriptor
    ) -> Accumulators:
        return self._kept(accumulators(self._context, descriptor), descriptor.ttl)

    def remove_expired(self) -> None:
        """One bounded step; call it after each batch."""
        for state in self._expiring:
            state.remove_expired(CLEANED_PER_BATCH)

    def _kept(self, state: _Kept, ttl: StateTtlConfig | None) -> _Kept:
        if ttl is not None:
            self._expiring.append(state)
        return state
