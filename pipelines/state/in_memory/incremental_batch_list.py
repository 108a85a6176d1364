"""A batch list of the hashmap backend that can write only what was appended since a checkpoint.

A checkpoint is a chain of files in the order in which they were written. A namespace gets a new
incarnation number whenever it comes into being. Rows are only ever appended to an incarnation; a
popped one is recorded as a tombstone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import FileHandle, StateFormat, StatePart
from pipelines.state.backend import (
    BatchListDescriptor,
    FrozenState,
    IncrementFiles,
    IncrementLog,
    StoredIncrement,
)
from pipelines.state.hashing import KeyGroups
from pipelines.state.in_memory.batch_list import HashMapBatchList, snapshot_schema, with_namespace
from pipelines.state.in_memory.key_rows import HashKeys
from pipelines.state.in_memory.table import DELETED_COLUMN

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
