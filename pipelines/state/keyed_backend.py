"""The keyed states of one operator of one subtask: what all backends have in common.

Owns the set of states by descriptor, checks declarations and restored rows, and removes expired
entries. The backends `hashmap` and `rocksdb` decide how a state keeps its rows.

Source: Flink's `RuntimeContext.getState` and its siblings; the handles work on batches of keys.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected, check
from pipelines.domain.ids import CheckpointId
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.backend import (
    NAMESPACE_COLUMN,
    BackendStatistics,
    BatchList,
    BatchListDescriptor,
    FrozenState,
    StoredDatabase,
    Table,
    TableDescriptor,
)
from pipelines.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    check_batch_list,
    check_table,
)
from pipelines.state.entries import CLEANED_PER_BATCH, KeyedStateContext, StateTtlConfig
from pipelines.state.evolution import check_no_nulls, evolved, own_rows
from pipelines.state.hashing import KeyGroups, key_hashes
from pipelines.state.in_memory import batch_list
from pipelines.state.in_memory.key_rows import HashKeys
from pipelines.state.in_memory.table import snapshot_schema
from pipelines.state.list_state import ListState, MapState
from pipelines.state.value_state import (
    Accumulators,
    FoldingState,
    ValueState,
    accumulators,
    aggregating,
    reducing,
)


class KeptTable(Table, Protocol):
    """A table as its backend sees it."""

    def expect(self, rows: int) -> None:
        """Announces that a restore is about to load that many rows."""
        ...

    def try_load(self, keys: pa.RecordBatch, values: Sequence[pa.Array]) -> bool:
        """Loads rows of a snapshot in bulk if that is faster; returns False if it loaded none."""
        ...

    @property
    def descriptor(self) -> TableDescriptor: ...

    @property
    def state_bytes(self) -> int: ...

    def key_groups_of(self, keys: pa.RecordBatch) -> KeyGroups: ...

    def freeze(self) -> FrozenState: ...


class KeptBatchList(BatchList, Protocol):
    """A batch list as its backend sees it."""

    @property
    def descriptor(self) -> BatchListDescriptor: ...

    @property
    def state_bytes(self) -> int: ...

    def key_groups_of(self, rows: pa.RecordBatch) -> KeyGroups: ...

    def freeze(self) -> FrozenState: ...


class IncrementalState(Protocol):
    """A state that can hand out what has changed since an earlier checkpoint."""

    @property
    def log(self) -> "IncrementNotices": ...

    def freeze_increment(
        self, checkpoint_id: CheckpointId, confirmed_id: CheckpointId
    ) -> FrozenState: ...


class IncrementNotices(Protocol):
    def on_completed(self, checkpoint_id: CheckpointId) -> None: ...

    def on_aborted(self, checkpoint_id: CheckpointId) -> None: ...


class KeyedBackend:
    """Implements `StateBackend`; subclasses make the tables and batch lists."""

    def __init__(
        self,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        *,
        is_incremental: bool = False,
        hash_keys: HashKeys = key_hashes,
    ) -> None:
        check(max_parallelism > key_groups.last, "key groups are of the run", own=key_groups)
        self._is_incremental = is_incremental
        self._incremental: dict[str, IncrementalState] = {}  # by name
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._hash_keys = hash_keys
        self._tables: dict[str, KeptTable] = {}
        self._lists: dict[str, KeptBatchList] = {}

    def _new_table(self, descriptor: TableDescriptor) -> KeptTable:
        raise NotImplementedError

    def _new_batch_list(self, descriptor: BatchListDescriptor) -> KeptBatchList:
        raise NotImplementedError

    def table(self, descriptor: TableDescriptor) -> Table:
        self._check_declared_alike(descriptor)
        if descriptor.name not in self._tables:
            check_table(descriptor)
            self._tables[descriptor.name] = self._new_table(descriptor)
        return self._tables[descriptor.name]

    def batch_list(self, descriptor: BatchListDescriptor) -> BatchList:
        self._check_declared_alike(descriptor)
        if descriptor.name not in self._lists:
            check_batch_list(descriptor)
            self._lists[descriptor.name] = self._new_batch_list(descriptor)
        return self._lists[descriptor.name]

    @property
    def descriptors(self) -> dict[str, TableDescriptor | BatchListDescriptor]:
        """The declared states, by name."""
        return {name: state.descriptor for name, state in self._states.items()}

    def cut(self) -> list[FrozenState]:
        return [state.freeze() for state in self._states.values()]

    def cut_increment(
        self, checkpoint_id: CheckpointId, confirmed_id: CheckpointId
    ) -> list[FrozenState]:
        is_older = confirmed_id < checkpoint_id
        check(is_older, "an increment builds on an older checkpoint", confirmed=confirmed_id)
        return [
            self._incremental[name].freeze_increment(checkpoint_id, confirmed_id)
            if name in self._incremental
            else state.freeze()
            for name, state in self._states.items()
        ]

    def cut_native(self) -> list[FrozenState]:
        """Returns Arrow rows, because the backend holds those in memory."""
        return self.cut()

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        for state in self._incremental.values():
            state.log.on_completed(checkpoint_id)

    def on_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        for state in self._incremental.values():
            state.log.on_aborted(checkpoint_id)

    def adopt(self, database: StoredDatabase) -> bool:
        """Returns False: this backend keeps no database."""
        return False

    def restore(
        self, state: str, batches: Iterable[pa.RecordBatch], rows_expected: int = 0
    ) -> None:
        target = self._states.get(state)
        if target is None:
            raise Rejected(
                f"The snapshot holds a state {state!r} that the operator does not have; "
                f"it has {sorted(self._states)}."
            )
        if state in self._tables:
            self._tables[state].expect(rows_expected)
        for batch in batches:
            rows = evolved(target.descriptor, batch)
            if state in self._tables:
                self._restore_table(self._tables[state], rows)
            else:
                self._restore_batches(self._lists[state], rows)
            self.settle()

    def settle(self) -> None:
        """Nothing to do: all rows stay in memory."""

    def close(self) -> None:
        """Nothing to do: the backend holds only memory."""

    def statistics(self) -> BackendStatistics:
        states = self._states.values()
        return BackendStatistics(
            rows=sum(len(state) for state in states),
            state_bytes=sum(state.state_bytes for state in states),
        )

    @property
    def _states(self) -> dict[str, KeptTable | KeptBatchList]:
        return {**self._tables, **self._lists}

    def _check_declared_alike(self, descriptor: TableDescriptor | BatchListDescriptor) -> None:
        declared = self._states.get(descriptor.name)
        if declared is not None and declared.descriptor != descriptor:
            raise Rejected(f"The state {descriptor.name!r} is declared twice, and differently.")

    def _restore_table(self, table: KeptTable, batch: pa.RecordBatch) -> None:
        descriptor = table.descriptor
        schema = snapshot_schema(descriptor)
        rows = own_rows(descriptor.name, schema, batch, self._key_groups, table.key_groups_of)
        never_null = [n for n in descriptor.value.names if descriptor.defaults[n] is not None]
        check_no_nulls(descriptor.name, rows, never_null)
        if not rows.num_rows:
            return
        keys = rows.select(descriptor.key.names)
        if table.try_load(keys, [rows.column(name) for name in descriptor.value.names]):
            return
        numbers = table.rows_for(keys)
        for name in descriptor.value.names:
            table.write_arrow(name, numbers, rows.column(name))

    def _restore_batches(self, target: KeptBatchList, batch: pa.RecordBatch) -> None:
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


class _State(Protocol):
    def remove_expired(self, limit: int) -> None: ...


_Kept = TypeVar("_Kept", bound=_State)


class KeyedStates:
    """Makes states. Each method raises Rejected if the name is taken or the type unsupported."""

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
        """Removes expired entries in one bounded step. Call it after each batch."""
        for state in self._expiring:
            state.remove_expired(CLEANED_PER_BATCH)

    def _kept(self, state: _Kept, ttl: StateTtlConfig | None) -> _Kept:
        if ttl is not None:
            self._expiring.append(state)
        return state
