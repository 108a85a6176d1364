"""The states of one operator of one subtask that belong to no key, on any backend.

A broadcast state is a map that is the same in every subtask, because every subtask builds it from
the same records. A list state is a list of one subtask. They are kept in memory and should be
small. `domain.key_groups.taken_by` decides which elements a subtask gets after a restore.
Sources: Flink's `DefaultOperatorStateBackend`, `BroadcastState`, `OperatorStateStore`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import Redistribution, Taken
from pipelines.protocol.compatibility import DeclaredColumns
from pipelines.state.arrow_types import check_key_type, copy_of, may_change
from pipelines.state.backend import FrozenState
from pipelines.state.descriptors import ListStateDescriptor, MapStateDescriptor
from pipelines.state.evolution import type_names

KEY = "key"
VALUE = "value"


class BroadcastState:
    """A small map, kept in memory as Python values; a cut turns them into arrays.

    Guarantee: functions read the same values that a cut contains. Values are copied on their way in
    and out, so that only `put` and `remove` change the state.
    """

    kind = Redistribution.BROADCAST

    def __init__(self, name: str, descriptor: MapStateDescriptor) -> None:
        self.name = name
        self.schema = pa.schema([(KEY, descriptor.key_type), (VALUE, descriptor.value_type)])
        self.is_writable = False  # only while broadcast records are processed
        check_key_type(descriptor.name, self.schema.field(KEY))
        self._descriptor = descriptor
        self._may_change = may_change(descriptor.value_type)
        self._entries: dict[Any, Any] = {}
        self._arrays: tuple[pa.Array, pa.Array] | None = None  # the entries, until they change
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """The size at the last cut or look-up. Any thread may read it."""
        return self._nbytes

    def get(self, key: Any) -> Any:
        """Returns the value or None. Changing the result does not change the state; `put` does."""
        value = self._entries.get(key)
        return copy_of(value) if self._may_change else value

    def contains(self, key: Any) -> bool:
        return key in self._entries

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Returns the present entries, copied like the results of `get`."""
        entries = list(self._entries.items())
        return iter(copy_of(entries) if self._may_change else entries)

    def look_up(self, keys: pa.Array) -> pa.Array:
        """Returns the value of each key, or null if there is none."""
        known, values = self._columns()
        return values.take(pc.index_in(keys, value_set=known))

    def put(self, key: Any, value: Any) -> None:
        """Raises Rejected unless broadcast records are being processed."""
        self._check_writable()
        self._entries[key] = copy_of(value) if self._may_change else value
        self._arrays = None

    def put_all(self, keys: pa.Array, values: pa.Array) -> None:
        """If a key repeats, its last value stays. Raises Rejected in the same case as `put`."""
        self._check_writable()
        self._put_all(keys, values)

    def remove(self, key: Any) -> None:
        """Raises Rejected unless broadcast records are being processed."""
        self._check_writable()
        self._entries.pop(key, None)
        self._arrays = None

    def freeze(self) -> FrozenState:
        """Raises Rejected if an entry does not have the declared types."""
        batch = pa.RecordBatch.from_arrays(list(self._columns()), schema=self.schema)
        return FrozenState(self.name, self.kind, self.schema, len(self), iter([batch]))

    def restore(self, batch: pa.RecordBatch) -> None:
        self._put_all(batch.column(KEY), batch.column(VALUE))

    def _put_all(self, keys: pa.Array, values: pa.Array) -> None:
        self._entries.update(zip(keys.to_pylist(), values.to_pylist(), strict=True))
        self._arrays = None

    def _columns(self) -> tuple[pa.Array, pa.Array]:
        if self._arrays is None:
            try:
                keys = pa.array(list(self._entries), self._descriptor.key_type)
                values = pa.array(list(self._entries.values()), self._descriptor.value_type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise Rejected(
                    f"The state {self._descriptor.name!r} maps {self._descriptor.key_type} to"
                    f" {self._descriptor.value_type}; an entry does not fit: {error}"
                ) from error
            self._arrays = keys, values
            self._nbytes = keys.nbytes + values.nbytes
        return self._arrays

    def _check_writable(self) -> None:
        if not self.is_writable:
            raise Rejected(
                f"The broadcast state {self._descriptor.name!r} can only be written where the"
                " broadcast records are processed: elsewhere the subtasks would differ."
            )


class OperatorListState:
    """The list of one subtask, kept as copies of the added arrays.

    The copies never change, so a cut copies only references. Without them, an array made over NumPy
    memory would change with that memory.
    """

    def __init__(self, name: str, descriptor: ListStateDescriptor, kind: Redistribution) -> None:
        self.name = name
        self.kind = kind
        self.schema = pa.schema([(descriptor.name, descriptor.type)])
        self._descriptor = descriptor
        self._chunks: list[pa.Array] = []

    def __len__(self) -> int:
        return sum(len(chunk) for chunk in self._chunks)

    @property
    def nbytes(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks)

    def get(self) -> pa.Array:
        """All elements, in order."""
        whole = pa.chunked_array(self._chunks, self._descriptor.type).combine_chunks()
        self._chunks = [whole] if len(whole) else []
        return whole

    def add(self, elements: pa.Array) -> None:
        """Raises Rejected if the elements do not have the declared type."""
        declared = self._descriptor
        if elements.type != declared.type:
            raise Rejected(
                f"The state {declared.name!r} holds {declared.type}; it was given {elements.type}."
            )
        if len(elements):
            self._chunks.append(elements.take(pa.array(np.arange(len(elements)))))

    def update(self, elements: pa.Array) -> None:
        self.clear()
        self.add(elements)

    def clear(self) -> None:
        self._chunks = []

    def freeze(self) -> FrozenState:
        batches = _batches(tuple(self._chunks), self.schema)
        return FrozenState(self.name, self.kind, self.schema, len(self), batches)

    def restore(self, batch: pa.RecordBatch) -> None:
        """Adds one part of the elements that the subtask gets; the parts arrive in order."""
        self.add(batch.column(0))


def _batches(chunks: tuple[pa.Array, ...], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for chunk in chunks:
        yield pa.RecordBatch.from_arrays([chunk], schema=schema)


PREFIX = "operator."
"""Put before the name that the author chose, because a keyed state may have the same name."""


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
        """Restores rows of a declared state; their types may be narrower than the declared ones."""
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


def elements_taken(batches: Iterable[pa.RecordBatch], taken: Taken) -> Iterator[pa.RecordBatch]:
    """Yields the elements that a subtask takes from one old subtask's batches; see `taken_by`."""
    next_index = taken.first
    for batch in batches:
        chosen = np.arange(next_index, batch.num_rows, taken.step)
        yield batch.take(pa.array(chosen))
        next_index += taken.step * len(chosen) - batch.num_rows
