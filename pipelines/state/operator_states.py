"""The states of one operator of one subtask that belong to no key, on any backend.

They are kept in memory and should be small. `domain.redistribution` decides which subtask gets
which of them after a restore. Source: Flink's `DefaultOperatorStateBackend`.
"""

from collections.abc import Iterable

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.redistribution import Redistribution
from pipelines.domain.schema_evolution import DeclaredColumns
from pipelines.state.backend import FrozenState
from pipelines.state.broadcast_state import BroadcastState
from pipelines.state.descriptors import ListStateDescriptor, MapStateDescriptor
from pipelines.state.evolution import type_names
from pipelines.state.operator_list_state import OperatorListState

PREFIX = "operator."
"""Precedes the author's name, because a keyed state may have the same name."""


class OperatorStates:
    def __init__(self) -> None:
        self._states: dict[str, OperatorListState | BroadcastState] = {}

    def list_of(self, descriptor: ListStateDescriptor, kind: Redistribution) -> OperatorListState:
        """Raises Rejected, as `broadcast` does, if the name is taken or has a time-to-live."""
        name = self._free_name(descriptor)
        state = self._states[name] = OperatorListState(name, descriptor, kind)
        return state

    def broadcast(self, descriptor: MapStateDescriptor) -> BroadcastState:
        name = self._free_name(descriptor)
        state = self._states[name] = BroadcastState(name, descriptor)
        return state

    @property
    def declared(self) -> dict[str, DeclaredColumns]:
        return {
            name: DeclaredColumns(
                name, state.kind, type_names(state.schema), frozenset(), frozenset(["key"])
            )
            for name, state in self._states.items()
        }

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in self._states.values())

    def cut(self) -> list[FrozenState]:
        return [state.freeze() for state in self._states.values()]

    def restore(self, name: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Restores rows of a declared state, in its present types or in narrower ones."""
        state = self._states.get(name)
        if state is None:
            raise Rejected(f"The snapshot holds a state {name!r} that the operator does not have.")
        for batch in batches:
            columns = [batch.column(field.name).cast(field.type) for field in state.schema]
            state.restore(pa.RecordBatch.from_arrays(columns, schema=state.schema))

    def allow_broadcast_writes(self, is_allowed: bool) -> None:
        for state in self._states.values():
            if isinstance(state, BroadcastState):
                state.is_writable = is_allowed

    def _free_name(self, descriptor: ListStateDescriptor | MapStateDescriptor) -> str:
        name = PREFIX + descriptor.name
        if name in self._states:
            raise Rejected(f"The operator state {descriptor.name!r} is declared twice.")
        if descriptor.ttl is not None:
            raise Rejected(
                f"The operator state {descriptor.name!r} cannot have a time-to-live; only keyed"
                " states can."
            )
        return name
