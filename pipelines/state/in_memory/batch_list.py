"""Append-only rows per namespace, kept as the Arrow batches in which they came.

Small batches are merged as they come, so that a namespace of n rows holds about n / 32,768 batches.
A cut copies the list of batches but no row, so it stays cheap.

`IncrementalBatchList` can write only what was appended since a checkpoint. Then a checkpoint is a
chain of files in the order in which they were written. A namespace gets a new incarnation number
whenever it comes into being. Rows are only ever appended to an incarnation; a popped one is
recorded as a tombstone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import FileHandle, StateFormat, StatePart
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    NAMESPACE_COLUMN,
    BatchListDescriptor,
    FrozenState,
    IncrementFiles,
    IncrementLog,
    StoredIncrement,
)
from pipelines.state.hashing import KeyGroups, key_groups
from pipelines.state.in_memory.key_rows import HashKeys
from pipelines.state.in_memory.table import DELETED_COLUMN

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


INCARNATION_COLUMN = "__incarnation"
DELTAS_MAX = 8
GONE_SHARE_MAX = 0.5
"""Above this share of rows of popped incarnations in the files, a new base is written."""


@dataclass(frozen=True, slots=True)
class ListChain:
    """The files of one checkpoint of one list, and the row count of each incarnation in them."""

    base: FileHandle
    deltas: tuple[FileHandle, ...]
    rows: Mapping[int, int]
    gone_rows: int = 0


@dataclass(frozen=True, slots=True)
class _Appended:
    """Rows of one incarnation that the chain lacks, after the `skip` rows that it has."""

    namespace: int
    incarnation: int
    batches: tuple[pa.RecordBatch, ...]
    skip: int

    def new_batches(self) -> Iterator[pa.RecordBatch]:
        skip = self.skip
        for batch in self.batches:
            if skip < batch.num_rows:
                yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)


class IncrementalBatchList(HashMapBatchList):
    """Implements `BatchList`, and hands out increments in addition to whole cuts."""

    def __init__(
        self, descriptor: BatchListDescriptor, max_parallelism: int, hash_keys: HashKeys
    ) -> None:
        super().__init__(descriptor, max_parallelism, hash_keys)
        self._incarnations: dict[int, int] = {}  # by namespace
        self._newest = 0
        self.log: IncrementLog[ListChain] = IncrementLog()

    def append(self, namespace: int, batch: pa.RecordBatch) -> None:
        super().append(namespace, batch)
        if batch.num_rows and namespace not in self._incarnations:
            self._newest += 1
            self._incarnations[namespace] = self._newest

    def pop(self, namespace: int) -> list[pa.RecordBatch]:
        self._incarnations.pop(namespace, None)
        return super().pop(namespace)

    def freeze_increment(
        self, checkpoint_id: CheckpointId, confirmed_id: CheckpointId
    ) -> FrozenState:
        chain = self.log.base(confirmed_id)
        if not len(self):
            self.log.on_written(checkpoint_id, None)
        content = {
            self._incarnations[namespace]: (namespace, tuple(batches))
            for namespace, batches in self.batches_by_namespace()
        }
        increment = _increment(
            chain,
            content,
            snapshot_schema(self.descriptor),
            self.key_groups_of,
            lambda written: self.log.on_written(checkpoint_id, written),
        )
        schema = snapshot_schema(self.descriptor)
        name = self.descriptor.name
        return FrozenState(name, "batches", schema, len(self), iter(()), increment)


_Content = dict[int, tuple[int, tuple[pa.RecordBatch, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListIncrement:
    """Implements `Increment`."""

    chain: ListChain | None  # None: a new base
    appended: list[_Appended]
    gone: list[int]
    rows: dict[int, int]  # of each live incarnation
    gone_rows: int
    schema: pa.Schema
    key_groups_of: Callable[[pa.RecordBatch], KeyGroups]
    on_written: Callable[[ListChain], None] = field(repr=False)

    def write(self, files: IncrementFiles) -> StoredIncrement:
        written = self._written(files)
        self.on_written(written)
        parts = tuple(StatePart(name="delta", file=delta) for delta in written.deltas)
        return StoredIncrement(StateFormat.DELTAS, written.base, parts)

    def _written(self, files: IncrementFiles) -> ListChain:
        chain, schema = self.chain, _increment_schema(self.schema)
        if chain is None:
            return ListChain(files.write_rows("base", schema, self._batches()), (), self.rows)
        if not self.appended and not self.gone:
            return chain
        delta = files.write_rows("delta", schema, self._batches())
        return ListChain(chain.base, (*chain.deltas, delta), self.rows, self.gone_rows)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        schema = _increment_schema(self.schema)
        if self.gone:
            nulls = [pa.nulls(len(self.gone), column_type) for column_type in self.schema.types]
            marks = [pa.array(self.gone, pa.int64()), pa.repeat(True, len(self.gone))]
            yield pa.RecordBatch.from_arrays([*nulls, *marks], schema=schema)
        for each in self.appended:
            for batch in each.new_batches():
                rows = with_namespace(batch, each.namespace, self.key_groups_of(batch))
                incarnations = np.full(batch.num_rows, each.incarnation, np.int64)
                marks = [pa.array(incarnations), pa.repeat(False, batch.num_rows)]
                yield pa.RecordBatch.from_arrays([*rows.columns, *marks], schema=schema)


def _increment(
    chain: ListChain | None,
    content: _Content,
    schema: pa.Schema,
    key_groups_of: Callable[[pa.RecordBatch], KeyGroups],
    on_written: Callable[[ListChain], None],
) -> ListIncrement:
    """A delta for the chain, unless that is long or holds mostly popped rows."""
    rows = {i: sum(b.num_rows for b in batches) for i, (_, batches) in content.items()}
    covered = {} if chain is None else chain.rows
    gone = [incarnation for incarnation in covered if incarnation not in content]
    gone_rows = sum(covered[incarnation] for incarnation in gone)
    gone_rows += 0 if chain is None else chain.gone_rows
    is_worn = gone_rows > GONE_SHARE_MAX * max(1, gone_rows + sum(rows.values()))
    if chain is not None and (is_worn or len(chain.deltas) >= DELTAS_MAX):
        chain, covered, gone, gone_rows = None, {}, [], 0
    appended = [
        _Appended(namespace, incarnation, batches, covered.get(incarnation, 0))
        for incarnation, (namespace, batches) in content.items()
        if rows[incarnation] > covered.get(incarnation, 0)
    ]
    return ListIncrement(
        chain=chain,
        appended=appended,
        gone=gone,
        rows=rows,
        gone_rows=gone_rows,
        schema=schema,
        key_groups_of=key_groups_of,
        on_written=on_written,
    )


def merged_batches(
    oldest_first: Callable[[], Iterable[Iterable[pa.RecordBatch]]],
) -> Iterator[pa.RecordBatch]:
    """The rows of a chain in order of arrival; reads its files twice, first for tombstones."""
    gone: set[int] = set()
    for batches in oldest_first():
        for batch in batches:
            gone.update(batch.filter(batch.column(DELETED_COLUMN))[INCARNATION_COLUMN].to_pylist())
    dead = np.fromiter(gone, np.int64, len(gone))
    for batches in oldest_first():
        for batch in batches:
            incarnations = batch.column(INCARNATION_COLUMN).to_numpy()
            kept = batch.filter(pa.array(~np.isin(incarnations, dead)))
            yield kept.drop_columns([INCARNATION_COLUMN, DELETED_COLUMN])


def _increment_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, (INCARNATION_COLUMN, pa.int64()), (DELETED_COLUMN, pa.bool_())])
