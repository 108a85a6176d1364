"""Append-only rows per namespace, kept as the Arrow batches in which they arrived.

Small batches are merged on arrival, so that a namespace has few batches, most of them 16 MiB or
more. A cut copies the list of batches but no row, so it stays cheap.

`IncrementalBatchList` can write only the rows appended since a checkpoint. Then a checkpoint is a
chain of files (`chains`). A namespace gets a new incarnation number each time it comes into being.
Rows are only ever appended to an incarnation. A popped one is recorded as a tombstone, unless the
files that contain its rows are dropped.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from pipelines.state.in_memory.chains import kept_beside
from pipelines.state.in_memory.key_rows import HashKeys
from pipelines.state.in_memory.table import DELETED_COLUMN

MERGED_BYTES = 16 << 20
"""A batch of this size or more is not merged with newer ones. Code that reads the rows in place
copies once per batch, so a few large batches cost it less."""

FANOUT = 8
"""So many batches of a tier are merged at once. Pairs would copy each row three times as often."""

LARGE = -1
"""The tier of a batch of MERGED_BYTES or more; others count how often their rows were merged."""

_SNAPSHOT_ROWS = 65_536


class HashMapBatchList:
    def __init__(
        self, descriptor: BatchListDescriptor, max_parallelism: int, hash_keys: HashKeys
    ) -> None:
        self._descriptor = descriptor
        self._max_parallelism = max_parallelism
        self._hash_keys = hash_keys
        self._batches: dict[int, list[pa.RecordBatch]] = {}
        self._tiers: dict[int, list[int]] = {}  # by namespace, one for each batch
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
        tiers = self._tiers.setdefault(namespace, [])
        batches.append(_unshared(batch))
        tiers.append(_tier_of(batches[-1], merged=0))
        self._bytes += batches[-1].nbytes
        while count := _worth_merging(batches, tiers):
            self._merge_last(count, batches, tiers)

    def namespaces_at_most(self, bound: int) -> list[int]:
        return sorted(namespace for namespace in self._batches if namespace <= bound)

    def batches(self, namespace: int) -> Sequence[pa.RecordBatch]:
        return self._batches.get(namespace, ())

    def batches_by_namespace(self) -> Iterable[tuple[int, list[pa.RecordBatch]]]:
        return self._batches.items()

    def namespaces(self) -> list[int]:
        return sorted(self._batches)

    def pop(self, namespace: int) -> list[pa.RecordBatch]:
        batches = self._batches.pop(namespace, [])
        self._tiers.pop(namespace, None)
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

    def _merge_last(self, count: int, batches: list[pa.RecordBatch], tiers: list[int]) -> None:
        last = batches[-count:]
        merged = pa.concat_batches(last)
        batches[-count:] = [merged]
        tiers[-count:] = [_tier_of(merged, merged=tiers[-1] + 1)]
        self._bytes += merged.nbytes - sum(each.nbytes for each in last)


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
        """Yields the rows; those of many small namespaces share a batch."""
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


def _tier_of(batch: pa.RecordBatch, *, merged: int) -> int:
    return LARGE if batch.nbytes >= MERGED_BYTES else merged


def _worth_merging(batches: list[pa.RecordBatch], tiers: list[int]) -> int:
    """Returns how many of the last batches should become one, or 0.

    Those are FANOUT of a tier, or fewer that make up MERGED_BYTES. So each row is copied a
    logarithmic number of times, and a tier has less than FANOUT batches.
    """
    count = size = 0
    for batch, tier in zip(reversed(batches), reversed(tiers), strict=True):
        if tier == LARGE or tier != tiers[-1]:
            return 0
        count, size = count + 1, size + batch.nbytes
        if count == FANOUT or (count > 1 and size >= MERGED_BYTES):
            return count
    return 0


def _unshared(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copies a small slice, so that it does not keep the large batch that it came from alive."""
    if batch.get_total_buffer_size() <= 2 * batch.nbytes:
        return batch
    return batch.take(pa.array(np.arange(batch.num_rows)))


INCARNATION_COLUMN = "__incarnation"
GONE_SHARE_MAX = 0.5
"""If popped incarnations make up more than this share of the rows, everything is written again."""


@dataclass(frozen=True, slots=True)
class ListFile:
    file: FileHandle
    rows: Mapping[int, int]  # by incarnation: the number of its rows in this file
    gone: frozenset[int]  # the incarnations whose tombstones are in this file

    def live_rows(self, live: Mapping[int, object]) -> int:
        return sum(count for incarnation, count in self.rows.items() if incarnation in live)


@dataclass(frozen=True, slots=True)
class _Appended:
    """Rows of one incarnation that are in no file yet: those after the first `skip` rows."""

    namespace: int
    incarnation: int
    batches: tuple[pa.RecordBatch, ...]
    skip: int
    new_rows: int

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
        self.log: IncrementLog[tuple[ListFile, ...]] = IncrementLog()

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
        files = self.log.base(confirmed_id)
        if not len(self):
            self.log.on_written(checkpoint_id, None)
        content = {
            self._incarnations[namespace]: (namespace, tuple(batches))
            for namespace, batches in self.batches_by_namespace()
        }
        schema = snapshot_schema(self.descriptor)
        increment = ListIncrement(
            plan=plan_list(files or (), content),
            schema=schema,
            key_groups_of=self.key_groups_of,
            on_written=lambda written: self.log.on_written(checkpoint_id, written),
        )
        name = self.descriptor.name
        return FrozenState(name, "batches", schema, len(self), iter(()), increment=increment)


_Content = Mapping[int, tuple[int, tuple[pa.RecordBatch, ...]]]


@dataclass(frozen=True, slots=True)
class ListPlan:
    """The files that a checkpoint keeps, and what it adds to them."""

    kept: tuple[ListFile, ...]
    appended: list[_Appended]
    gone: list[int]  # to be recorded as tombstones


@dataclass(frozen=True, slots=True, kw_only=True)
class ListIncrement:
    """Implements `Increment`."""

    plan: ListPlan
    schema: pa.Schema
    key_groups_of: Callable[[pa.RecordBatch], KeyGroups]
    on_written: Callable[[tuple[ListFile, ...]], None] = field(repr=False)

    def write(self, files: IncrementFiles) -> StoredIncrement:
        plan, chain = self.plan, self.plan.kept
        if not chain or plan.appended or plan.gone:
            label = "delta" if chain else "base"
            written = files.write_rows(label, _increment_schema(self.schema), self._batches())
            rows = {each.incarnation: each.new_rows for each in plan.appended}
            chain = (*chain, ListFile(written, rows, frozenset(plan.gone)))
        self.on_written(chain)
        first, *others = [each.file for each in chain]
        parts = tuple(StatePart(name="delta", file=file) for file in others)
        return StoredIncrement(StateFormat.DELTAS, first, parts)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        schema, gone = _increment_schema(self.schema), self.plan.gone
        if gone:
            nulls = [pa.nulls(len(gone), column_type) for column_type in self.schema.types]
            marks = [pa.array(gone, pa.int64()), pa.repeat(True, len(gone))]
            yield pa.RecordBatch.from_arrays([*nulls, *marks], schema=schema)
        for each in self.plan.appended:
            for batch in each.new_batches():
                rows = with_namespace(batch, each.namespace, self.key_groups_of(batch))
                incarnations = np.full(batch.num_rows, each.incarnation, np.int64)
                marks = [pa.array(incarnations), pa.repeat(False, batch.num_rows)]
                yield pa.RecordBatch.from_arrays([*rows.columns, *marks], schema=schema)


def plan_list(files: tuple[ListFile, ...], content: _Content) -> ListPlan:
    """Keeps a file while it has a live row, unless the file is merged with the new rows.

    The kept files are the first ones, without those that have no live row. So they contain the
    first rows of each live incarnation, in order.
    """
    rows = {number: sum(b.num_rows for b in batches) for number, (_, batches) in content.items()}
    files = tuple(each for each in files if each.live_rows(rows))
    sizes = [each.live_rows(rows) for each in files]
    new_rows = sum(rows.values()) - sum(sizes)
    files = files[: kept_beside([each.file for each in files], sizes, new_rows)]
    held: Counter[int] = Counter()
    for each in files:
        held.update(each.rows)
    gone = held.keys() - rows.keys()
    gone_rows = sum(held[number] for number in gone)
    if gone_rows > GONE_SHARE_MAX * (gone_rows + sum(rows.values())):
        files, held, gone = (), Counter(), set()
    recorded = frozenset[int]().union(*(each.gone for each in files))
    appended = [
        _Appended(namespace, number, batches, held[number], rows[number] - held[number])
        for number, (namespace, batches) in content.items()
        if rows[number] > held[number]
    ]
    return ListPlan(files, appended, sorted(gone - recorded))


def merged_batches(
    oldest_first: Callable[[], Iterable[Iterable[pa.RecordBatch]]],
) -> Iterator[pa.RecordBatch]:
    """Yields a chain's rows in order of arrival; reads its files twice, first for tombstones."""
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
