"""One batch list of the hashmap backend: rows per namespace, in order of arrival.

Batches are immutable, so a cut only copies the lists that point to them.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.arrays import to_column
from pipelines.state.backend import KEY_GROUP_COLUMN, BatchListDescriptor, FrozenState
from pipelines.state.hashing import key_groups, key_hashes

NAMESPACE_COLUMN = "__namespace"


class HashMapBatchList:
    """Implements `BatchList`. Used by the subtask's thread only; cuts are read by another."""

    def __init__(
        self, descriptor: BatchListDescriptor, groups: KeyGroupRange, max_parallelism: int
    ) -> None:
        self._descriptor = descriptor
        self._groups = groups
        self._max_parallelism = max_parallelism
        self._batches: dict[int, list[pa.RecordBatch]] = {}
        self._rows = 0
        self._bytes = 0

    @property
    def descriptor(self) -> BatchListDescriptor:
        return self._descriptor

    @property
    def nbytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return self._rows

    def append(self, namespace: int, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._batches.setdefault(namespace, []).append(batch)
            self._rows += batch.num_rows
            self._bytes += batch.nbytes

    def namespaces_at_most(self, bound: int) -> list[int]:
        return sorted(namespace for namespace in self._batches if namespace <= bound)

    def pop(self, namespace: int) -> list[pa.RecordBatch]:
        batches = self._batches.pop(namespace, [])
        self._rows -= sum(batch.num_rows for batch in batches)
        self._bytes -= sum(batch.nbytes for batch in batches)
        return batches

    def cut(self) -> FrozenState:
        frozen = {namespace: tuple(batches) for namespace, batches in self._batches.items()}
        return FrozenState(
            self._descriptor.name,
            "batches",
            snapshot_schema(self._descriptor),
            self._rows,
            _snapshot_batches(frozen, self._descriptor, self._max_parallelism),
        )

    def restore(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Batches are checked against the descriptor by the backend; order is kept."""
        for batch in batches:
            groups = to_column(batch.column(KEY_GROUP_COLUMN))
            own = (groups >= self._groups.first) & (groups <= self._groups.last)
            self._restore_rows(batch.filter(pa.array(own)))

    def _restore_rows(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        namespaces = to_column(batch.column(NAMESPACE_COLUMN))
        order = np.argsort(namespaces, kind="stable")
        rows = batch.take(pa.array(order)).select(self._descriptor.schema.names)
        distinct, starts = np.unique(namespaces[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        for namespace, start, end in zip(distinct.tolist(), starts.tolist(), ends, strict=True):
            self.append(namespace, rows.slice(start, end - start))


def snapshot_schema(descriptor: BatchListDescriptor) -> pa.Schema:
    namespace = pa.field(NAMESPACE_COLUMN, pa.int64())
    return pa.schema([*descriptor.schema, namespace, pa.field(KEY_GROUP_COLUMN, pa.uint16())])


def _snapshot_batches(
    frozen: dict[int, tuple[pa.RecordBatch, ...]],
    descriptor: BatchListDescriptor,
    max_parallelism: int,
) -> Iterator[pa.RecordBatch]:
    """All rows as one table: thousands of small batches would make a file of headers."""
    batches = [batch for batches in frozen.values() for batch in batches]
    if not batches:
        return
    counts = [sum(batch.num_rows for batch in batches) for batches in frozen.values()]
    namespaces = np.repeat(np.fromiter(frozen, dtype=np.int64, count=len(frozen)), counts)
    rows = pa.Table.from_batches(batches, descriptor.schema).combine_chunks().to_batches()[0]
    groups = key_groups(key_hashes(rows, descriptor.key_group_by), max_parallelism)
    arrays = [*rows.columns, pa.array(namespaces), pa.array(groups)]
    yield pa.RecordBatch.from_arrays(arrays, schema=snapshot_schema(descriptor))
