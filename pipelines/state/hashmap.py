"""The hashmap backend: all states of one operator of one subtask, in memory.

Owns the set of states and checks what is declared and what is restored; the states themselves
are `table` and `batch_list`. The class itself is the `BackendFactory`.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state import batch_list, frozen_table
from pipelines.state.arrow_types import check_default, check_key_type, check_value_type
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    NAMESPACE_COLUMN,
    BackendStatistics,
    BatchList,
    BatchListDescriptor,
    FrozenState,
    Table,
    TableDescriptor,
)
from pipelines.state.batch_list import HashMapBatchList
from pipelines.state.evolution import evolved
from pipelines.state.hashing import key_hashes
from pipelines.state.restoring import check_no_nulls, own_rows
from pipelines.state.table import HashKeys, HashMapTable


class HashMapBackend:
    def __init__(
        self,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        *,
        hash_keys: HashKeys = key_hashes,
    ) -> None:
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._hash_keys = hash_keys
        self._states: dict[str, HashMapTable | HashMapBatchList] = {}

    def table(self, descriptor: TableDescriptor) -> Table:
        declared = self._declared(descriptor)
        if isinstance(declared, HashMapTable):
            return declared
        _check_table(descriptor)
        table = HashMapTable(descriptor, self._key_groups, self._max_parallelism, self._hash_keys)
        self._states[descriptor.name] = table
        return table

    def batch_list(self, descriptor: BatchListDescriptor) -> BatchList:
        declared = self._declared(descriptor)
        if isinstance(declared, HashMapBatchList):
            return declared
        _check_batch_list(descriptor)
        batches = HashMapBatchList(descriptor, self._max_parallelism, self._hash_keys)
        self._states[descriptor.name] = batches
        return batches

    @property
    def descriptors(self) -> dict[str, TableDescriptor | BatchListDescriptor]:
        """What has been declared, by the name of the state."""
        return {name: state.descriptor for name, state in self._states.items()}

    def cut(self) -> list[FrozenState]:
        return [state.freeze() for state in self._states.values()]

    def restore(self, state: str, batches: Iterable[pa.RecordBatch]) -> None:
        target = self._states.get(state)
        if target is None:
            raise Rejected(
                f"The snapshot holds a state {state!r} that the operator does not have; "
                f"it has {sorted(self._states)}."
            )
        for batch in batches:
            rows = evolved(target.descriptor, batch)
            if isinstance(target, HashMapTable):
                self._restore_table(target, rows)
            else:
                self._restore_batches(target, rows)

    def statistics(self) -> BackendStatistics:
        states = self._states.values()
        return BackendStatistics(
            rows=sum(len(state) for state in states),
            state_bytes=sum(state.state_bytes for state in states),
        )

    def _declared(
        self, descriptor: TableDescriptor | BatchListDescriptor
    ) -> HashMapTable | HashMapBatchList | None:
        declared = self._states.get(descriptor.name)
        if declared is not None and declared.descriptor != descriptor:
            raise Rejected(f"The state {descriptor.name!r} is declared twice, and differently.")
        return declared

    def _restore_table(self, table: HashMapTable, batch: pa.RecordBatch) -> None:
        descriptor = table.descriptor
        schema = frozen_table.snapshot_schema(descriptor)
        rows = own_rows(descriptor.name, schema, batch, self._key_groups, table.key_groups_of)
        never_null = [n for n in descriptor.value.names if descriptor.defaults[n] is not None]
        check_no_nulls(descriptor.name, rows, never_null)
        if not rows.num_rows:
            return
        numbers = table.rows_for(rows.select(descriptor.key.names))
        for name in descriptor.value.names:
            table.write_arrow(name, numbers, rows.column(name))

    def _restore_batches(self, target: HashMapBatchList, batch: pa.RecordBatch) -> None:
        descriptor = target.descriptor
        schema = batch_list.snapshot_schema(descriptor)
        rows = own_rows(descriptor.name, schema, batch, self._key_groups, target.key_groups_of)
        check_no_nulls(descriptor.name, rows, [NAMESPACE_COLUMN])
        namespaces = rows.column(NAMESPACE_COLUMN).to_numpy()
        content = pa.RecordBatch.from_arrays(
            rows.columns[: len(descriptor.schema)], schema=descriptor.schema
        )
        order = np.argsort(namespaces, kind="stable")  # keeps the order of arrival within each
        distinct, starts = np.unique(namespaces[order], return_index=True)
        for namespace, own in zip(distinct.tolist(), np.split(order, starts[1:]), strict=False):
            target.append(namespace, content.take(pa.array(own)))


def _check_table(descriptor: TableDescriptor) -> None:
    for field in descriptor.key:
        check_key_type(descriptor.name, field)
    for field in descriptor.value:
        check_value_type(descriptor.name, field)
        if field.name not in descriptor.defaults:
            raise Rejected(f"State '{descriptor.name}': '{field.name}' has no default.")
        check_default(descriptor.name, field, descriptor.defaults[field.name])
    if not len(descriptor.key):
        raise Rejected(f"State '{descriptor.name}' declares no key column.")
    _check_columns(descriptor.name, [*descriptor.key, *descriptor.value])
    _check_grouping(descriptor.name, descriptor.key_group_by, descriptor.key)


def _check_batch_list(descriptor: BatchListDescriptor) -> None:
    _check_columns(descriptor.name, list(descriptor.schema))
    _check_grouping(descriptor.name, descriptor.key_group_by, descriptor.schema)


def _check_columns(state: str, fields: list[pa.Field]) -> None:
    names = [field.name for field in fields]
    for name in names:
        if name in (KEY_GROUP_COLUMN, NAMESPACE_COLUMN):
            raise Rejected(f"State '{state}': the column name '{name}' is reserved.")
        if names.count(name) > 1:
            raise Rejected(f"State '{state}': the column '{name}' is declared twice.")


def _check_grouping(state: str, key_group_by: tuple[str, ...], schema: pa.Schema) -> None:
    if not key_group_by:
        raise Rejected(f"State '{state}' names no column that decides the key group.")
    for name in key_group_by:
        if name not in schema.names:
            raise Rejected(f"State '{state}': there is no column '{name}' to decide key groups.")
        check_key_type(state, schema.field(name))
