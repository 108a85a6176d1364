"""The hashmap backend: all states of one operator of one subtask, in memory.

The states themselves are `table` and `batch_list`, in their incremental forms if checkpoints are to
hold only changes. The class of the backend is the `BackendFactory`.

A checkpoint of an incremental table is a chain of files (`chains`). Rows are identified by their
number in the table. The newest file that contains a number decides; a deleted row is recorded as a
tombstone. Each cut has a mask of the rows that changed since the cut before. The mask is kept as
long as an increment may build on the state before it. Old masks are merged; an increment then
contains a few more rows than necessary.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.domain.ids import CheckpointId
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.snapshots import StateFormat, StatePart
from pipelines.state.backend import (
    BatchListDescriptor,
    FrozenState,
    IncrementFiles,
    IncrementLog,
    Rows,
    StoredIncrement,
    TableDescriptor,
)
from pipelines.state.in_memory.batch_list import HashMapBatchList, IncrementalBatchList
from pipelines.state.in_memory.chains import (
    TableChain,
    TableFile,
    plan_table,
    rows_of_slice,
    slice_of,
)
from pipelines.state.in_memory.key_rows import HashKeys
from pipelines.state.in_memory.table import (
    DELETED_COLUMN,
    ROW_COLUMN,
    DirtyRows,
    FrozenTable,
    HashMapTable,
    Mask,
    RowNumbers,
    increment_schema,
    snapshot_schema,
    union,
)
from pipelines.state.keyed_backend import KeptBatchList, KeptTable, KeyedBackend

MASKS_MAX = 16


@dataclass(frozen=True, slots=True)
class Changes:
    masks: tuple[tuple[int, Mask], ...]  # no longer written to

    def since(self, cut: int) -> Mask:
        """Flags the rows that changed between that cut and the newest one."""
        return union([mask for number, mask in self.masks if number > cut])


class ChangedRows:
    """Cuts are numbered from 1."""

    def __init__(self) -> None:
        self._dirty = DirtyRows()
        self._masks: list[tuple[int, Mask]] = []  # the changes up to a cut, since the one before
        self._cuts = 0

    def mark(self, rows: RowNumbers) -> None:
        self._dirty.mark(rows)

    def cut(self) -> int:
        """Returns the number of this cut."""
        self._cuts += 1
        self._masks.append((self._cuts, self._dirty.take()))
        if len(self._masks) > MASKS_MAX:
            self._merge(0)
        return self._cuts

    def up_to_now(self) -> "Changes":
        """Returns the changes up to the newest cut, unaffected by later ones; for any thread."""
        return Changes(tuple(self._masks))

    def forget_up_to(self, cut: int) -> None:
        """Forgets older changes, because no increment will build on anything before that cut."""
        self._masks = [(number, mask) for number, mask in self._masks if number > cut]

    def _merge(self, index: int) -> None:
        (_, older), (number, younger) = self._masks[index : index + 2]
        self._masks[index : index + 2] = [(number, union([older, younger]))]


class IncrementalTable(HashMapTable):
    """Implements `Table`, and hands out increments in addition to whole cuts."""

    def __init__(
        self,
        descriptor: TableDescriptor,
        own_groups: KeyGroupRange,
        max_parallelism: int,
        hash_keys: HashKeys,
    ) -> None:
        super().__init__(descriptor, own_groups, max_parallelism, hash_keys)
        self._changed = ChangedRows()
        self.log: IncrementLog[TableChain] = IncrementLog()

    def write(self, column: str, rows: Rows, values: npt.NDArray[np.generic]) -> None:
        self._changed.mark(rows)
        super().write(column, rows, values)

    def write_arrow(self, column: str, rows: Rows, values: pa.Array) -> None:
        self._changed.mark(rows)
        super().write_arrow(column, rows, values)

    def delete(self, rows: Rows) -> None:
        self._changed.mark(rows)
        super().delete(rows)

    def _on_loaded(self, rows: Rows) -> None:
        self._changed.mark(rows)
        super()._on_loaded(rows)

    def _on_added(self, rows: Rows) -> None:
        self._changed.mark(rows)
        super()._on_added(rows)

    def freeze_increment(
        self, checkpoint_id: CheckpointId, confirmed_id: CheckpointId
    ) -> FrozenState:
        chain = self.log.base(confirmed_id)
        cut = self._changed.cut()
        changes = self._changed.up_to_now()
        if chain is not None:
            self._changed.forget_up_to(chain.files[chain.fixed - 1].cut)
        if not len(self):
            self.log.on_written(checkpoint_id, None)
        increment = TableIncrement(
            frozen=self.freeze_rows(),
            live_rows=len(self),
            chain=chain,
            changes=changes,
            cut=cut,
            on_written=lambda written: self.log.on_written(checkpoint_id, written),
        )
        schema = snapshot_schema(self.descriptor)
        return FrozenState(
            self.descriptor.name, "table", schema, len(self), iter(()), increment=increment
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIncrement:
    """Implements `Increment`. Counts the changed rows here, not on the subtask's thread."""

    frozen: FrozenTable
    live_rows: int
    chain: TableChain | None
    changes: Changes
    cut: int
    on_written: Callable[[TableChain], None] = field(repr=False)

    def write(self, files: IncrementFiles) -> StoredIncrement:
        chain = TableChain(self._files(files), self.cut)
        chain.validate_state()
        self.on_written(chain)
        first, *others = [each.file for each in chain.files]
        parts = tuple(StatePart(name="delta", file=file) for file in others)
        return StoredIncrement(StateFormat.DELTAS, first, parts)

    def _files(self, files: IncrementFiles) -> tuple[TableFile, ...]:
        slices = slice_of(self.frozen.length - 1) + 1
        plan = plan_table(self.chain, self._changed_since, self.live_rows, slices)
        if not plan.kept:
            return tuple(self._whole(files))
        changed = self.changes.since(plan.since)
        if not plan.swept and not changed.any():
            return plan.kept
        swept = np.zeros(self.frozen.length, np.bool_)
        for number in plan.swept:
            swept[rows_of_slice(number)] = True
        rows = self.frozen.increment(union([changed, swept]), deleted=changed)
        return (*plan.kept, self._written(files, "delta", rows, plan.swept))

    def _whole(self, files: IncrementFiles) -> Iterator[TableFile]:
        """Writes one file for each slice, so that each can be replaced on its own."""
        for number, rows in itertools.groupby(self.frozen.increment(), slice_of_batch):
            yield self._written(files, f"base{number}", rows, frozenset({number}))

    def _written(
        self,
        files: IncrementFiles,
        label: str,
        batches: Iterable[pa.RecordBatch],
        swept: frozenset[int],
    ) -> TableFile:
        rows, slices = 0, set(swept)

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in batches:
                rows += batch.num_rows
                slices.add(slice_of_batch(batch))
                yield batch

        file = files.write_rows(label, increment_schema(self.frozen.schema), counted())
        return TableFile(file, self.cut, rows, frozenset(slices), swept)

    def _changed_since(self, cut: int) -> int:
        return int(np.count_nonzero(self.changes.since(cut)))


def slice_of_batch(batch: pa.RecordBatch) -> int:
    """Returns the slice of a batch, whose rows all belong to one segment and so to one slice."""
    rows = batch.column(ROW_COLUMN).to_numpy()
    first, last = slice_of(int(rows.min())), slice_of(int(rows.max()))
    check(first == last, "a batch has rows of one slice", first=first, last=last)
    return first


def merged_rows(
    newest_first: Iterable[Iterable[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Yields the live rows of a chain's files; for each row number the newest file decides."""
    seen = np.zeros(0, np.bool_)
    for batches in newest_first:
        for batch in batches:
            rows = batch.column(ROW_COLUMN).to_numpy()
            needed = int(rows.max(initial=-1)) + 1
            if needed > len(seen):
                seen = np.concatenate([seen, np.zeros(max(needed, len(seen)), np.bool_)])
            is_deleted = batch.column(DELETED_COLUMN).to_numpy(zero_copy_only=False)
            kept = ~seen[rows] & ~is_deleted
            seen[rows] = True
            yield batch.filter(pa.array(kept)).drop_columns([ROW_COLUMN, DELETED_COLUMN])


class HashMapBackend(KeyedBackend):
    def _new_table(self, descriptor: TableDescriptor) -> KeptTable:
        shape = (descriptor, self._key_groups, self._max_parallelism, self._hash_keys)
        if not self._is_incremental:
            return HashMapTable(*shape)
        table = IncrementalTable(*shape)
        self._incremental[descriptor.name] = table
        return table

    def _new_batch_list(self, descriptor: BatchListDescriptor) -> KeptBatchList:
        shape = (descriptor, self._max_parallelism, self._hash_keys)
        if not self._is_incremental:
            return HashMapBatchList(*shape)
        batches = IncrementalBatchList(*shape)
        self._incremental[descriptor.name] = batches
        return batches
