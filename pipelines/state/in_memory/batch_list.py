"""Append-only rows per namespace, kept as the Arrow batches in which they came.

Small batches are merged as they come, so that a namespace of n rows holds about n / 32,768 batches.
A cut copies the list of batches but no row, so it stays cheap.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    NAMESPACE_COLUMN,
    BatchListDescriptor,
    FrozenState,
)
from pipelines.state.hashing import KeyGroups, key_groups
from pipelines.state.in_memory.key_rows import HashKeys

_MERGED_ROWS = 32_768
_SNAPSHOT_ROWS = 65_536


class HashMapBatchList:
    def __init__(
        self, descriptor: BatchListDescriptor, max_parallelism: int, hash_keys: HashKeys
    ) -> None:
        self._descriptor = descriptor
        self._max_parallelism = max_parallelism
        self._hash_keys = hash_keys
        self._batches: dict[int, list[pa.RecordBatch]] = {}
        self._rows = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def descriptor(self) -> BatchListDescriptor:
        return self._descriptor

    @property
    def state_bytes(self) -> int:
        return self._bytes

    def append(self, namespace: int, batch: pa.RecordBatch) -> None:
        is_declared = batch.schema.equals(self._descriptor.schema)
        check(is_declared, "rows have the declared schema", state=self._descriptor.name)
        if not batch.num_rows:
            return
        self._rows += batch.num_rows
        batches = self._batches.setdefault(namespace, [])
        batches.append(_unshared(batch))
        self._bytes += batches[-1].nbytes
        while _is_worth_merging(batches):
            self._merge_last_two(batches)

    def namespaces_at_most(self, bound: int) -> list[int]:
        return sorted(namespace for namespace in self._batches if namespace <= bound)

    def batches_by_namespace(self) -> Iterable[tuple[int, list[pa.RecordBatch]]]:
        return self._batches.items()

    def namespaces(self) -> list[int]:
        return sorted(self._batches)

    def pop(self, namespace: int) -> list[pa.RecordBatch]:
        batches = self._batches.pop(namespace, [])
        self._rows -= sum(batch.num_rows for batch in batches)
        self._bytes -= sum(batch.nbytes for batch in batches)
        return batches

    def key_groups_of(self, rows: pa.RecordBatch) -> KeyGroups:
        return key_groups(
            self._hash_keys(rows, self._descriptor.key_group_by), self._max_parallelism
        )

    def freeze(self) -> FrozenState:
        frozen = FrozenBatchList(
            snapshot_schema(self._descriptor),
            [(namespace, tuple(batches)) for namespace, batches in self._batches.items()],
            self,
        )
        return FrozenState(
            self._descriptor.name, "batches", frozen.schema, self._rows, frozen.batches()
        )

    def _merge_last_two(self, batches: list[pa.RecordBatch]) -> None:
        last, before = batches.pop(), batches.pop()
        merged = pa.concat_batches([before, last])
        batches.append(merged)
        self._bytes += merged.nbytes - last.nbytes - before.nbytes


def snapshot_schema(descriptor: BatchListDescriptor) -> pa.Schema:
    added = [(NAMESPACE_COLUMN, pa.int64()), (KEY_GROUP_COLUMN, pa.uint16())]
    return pa.schema([*descriptor.schema, *added])


def with_namespace(batch: pa.RecordBatch, namespace: int, groups: KeyGroups) -> pa.RecordBatch:
    """Turns rows of one namespace into rows of a snapshot."""
    added = [pa.array(np.full(batch.num_rows, namespace, np.int64)), pa.array(groups)]
    names = [*batch.schema.names, NAMESPACE_COLUMN, KEY_GROUP_COLUMN]
    return pa.RecordBatch.from_arrays([*batch.columns, *added], names=names)


@dataclass(frozen=True, slots=True)
class FrozenBatchList:
    """The batches at the cut; they are immutable, so nothing is copied and nothing is locked."""

    schema: pa.Schema
    content: list[tuple[int, tuple[pa.RecordBatch, ...]]]
    origin: HashMapBatchList

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows of many small namespaces share a batch."""
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for namespace, batches in self.content:
            for batch in batches:
                waiting.append(self._complete(namespace, batch))
                rows += batch.num_rows
                if rows >= _SNAPSHOT_ROWS:
                    yield pa.concat_batches(waiting)
                    waiting, rows = [], 0
        if waiting:
            yield pa.concat_batches(waiting)

    def _complete(self, namespace: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        return with_namespace(batch, namespace, self.origin.key_groups_of(batch))


def _is_worth_merging(batches: list[pa.RecordBatch]) -> bool:
    """Equal powers of two merge, so that each row is copied a logarithmic number of times."""
    if len(batches) < 2:
        return False
    before, last = batches[-2].num_rows, batches[-1].num_rows
    return bool(before < _MERGED_ROWS and last >= before)


def _unshared(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copies a small slice, so that it does not keep the large batch that it came from alive."""
    if batch.get_total_buffer_size() <= 2 * batch.nbytes:
        return batch
    return batch.take(pa.array(np.arange(batch.num_rows)))
