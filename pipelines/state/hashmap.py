"""The hashmap backend: all state in memory, columns per state, one backend per operator subtask.

Owns the states' names and the check that a snapshot fits them. Source: Flink's
`HeapKeyedStateBackend` with copy-on-write tables; the columnar form is ours.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state import batch_list, table
from pipelines.state.backend import (
    BackendStatistics,
    BatchListDescriptor,
    FrozenState,
    TableDescriptor,
)
from pipelines.state.batch_list import HashMapBatchList
from pipelines.state.table import HashMapTable

_State = TypeVar("_State", HashMapTable, HashMapBatchList)


class HashMapBackend:
    """Implements `StateBackend`."""

    def __init__(self, key_groups: KeyGroupRange, max_parallelism: int) -> None:
        self._groups = key_groups
        self._max_parallelism = max_parallelism
        self._states: dict[str, HashMapTable | HashMapBatchList] = {}

    def table(self, descriptor: TableDescriptor) -> HashMapTable:
        return self._declare(
            descriptor,
            HashMapTable,
            lambda: HashMapTable(descriptor, self._groups, self._max_parallelism),
        )

    def batch_list(self, descriptor: BatchListDescriptor) -> HashMapBatchList:
        return self._declare(
            descriptor,
            HashMapBatchList,
            lambda: HashMapBatchList(descriptor, self._groups, self._max_parallelism),
        )

    def cut(self) -> list[FrozenState]:
        return [state.cut() for state in self._states.values()]

    def restore(self, state: str, batches: Iterable[pa.RecordBatch]) -> None:
        declared = self._states.get(state)
        if declared is None:
            raise Rejected(f"The snapshot holds a state {state!r} that the operator does not have.")
        declared.restore(_checked(state, expected_schema(declared), batches))

    def statistics(self) -> BackendStatistics:
        states = self._states.values()
        return BackendStatistics(sum(map(len, states)), sum(state.nbytes for state in states))

    def _declare(
        self,
        descriptor: TableDescriptor | BatchListDescriptor,
        kind: type[_State],
        create: Callable[[], _State],
    ) -> _State:
        known = self._states.get(descriptor.name)
        if known is None:
            created = create()
            self._states[descriptor.name] = created
            return created
        if not isinstance(known, kind) or known.descriptor != descriptor:
            raise Rejected(f"The state {descriptor.name!r} is declared twice, and differently.")
        return known


def expected_schema(state: HashMapTable | HashMapBatchList) -> pa.Schema:
    if isinstance(state, HashMapTable):
        return table.snapshot_schema(state.descriptor)
    return batch_list.snapshot_schema(state.descriptor)


def _checked(
    state: str, expected: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for field in expected:
            _check_column(state, field, batch.schema)
        yield batch


def _check_column(state: str, field: pa.Field, found: pa.Schema) -> None:
    index = found.get_field_index(field.name)
    if index < 0:
        raise Rejected(f"The snapshot of the state {state!r} lacks the column {field.name!r}.")
    if found.field(index).type != field.type:
        raise Rejected(
            f"The column {field.name!r} of the state {state!r} is {found.field(index).type} in the "
            f"snapshot and {field.type} in the operator."
        )
