"""The hashmap backend: all states of one operator of one subtask, in memory.

The states themselves are `table` and `batch_list`, in their incremental forms if checkpoints are to
hold only changes. The class of the backend is the `BackendFactory`.

A checkpoint of an incremental table is a chain of files: a base with every row, then deltas in
order. Rows are identified by their number in the table. The newest file that holds a number is
right; a deleted row is recorded as a tombstone. The table decides between another delta and a new
base, so that no chain gets long or much larger than the table. One mask per cut says which rows
have changed since, for as long as an increment may still build on the state before it. Masks may be
merged under the smaller number; an increment then holds some more rows than necessary.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.ids import CheckpointId
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.snapshots import FileHandle, StateFormat, StatePart
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
        """Rows that changed between that cut and the newest one."""
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
        """The changes up to the newest cut, for any thread; later changes do not affect them."""
        return Changes(tuple(self._masks))

    def forget_up_to(self, cut: int) -> None:
        """No increment will build on anything before that cut any more."""
        self._masks = [(number, mask) for number, mask in self._masks if number > cut]

    def _merge(self, index: int) -> None:
        (_, older), (number, younger) = self._masks[index : index + 2]
        self._masks[index : index + 2] = [(number, union([older, younger]))]


DELTAS_MAX = 8
"""The most files after the base; a restore reads all of them."""

DELTA_SHARE_MAX = 0.5
"""The most rows in the deltas, relative to the base; above it a new base restores faster."""


@dataclass(frozen=True, slots=True)
class DeltaChain:
    """The files of one checkpoint of one table, and the cuts of the base and the newest file."""

    base: FileHandle
    base_cut: int
    base_rows: int
    deltas: tuple[FileHandle, ...] = ()
    delta_rows: int = 0
    cut: int = 0

    def has_room_for(self, rows: int) -> bool:
        is_short = len(self.deltas) < DELTAS_MAX
        return is_short and self.delta_rows + rows <= self.base_rows * DELTA_SHARE_MAX


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
        self.log: IncrementLog[DeltaChain] = IncrementLog()

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
        changes, live_rows = self._changed.up_to_now(), len(self)
        if chain is not None:
            self._changed.forget_up_to(chain.base_cut)
        if not len(self):
            self.log.on_written(checkpoint_id, None)
        schema = snapshot_schema(self.descriptor)
        frozen = self.freeze_rows()
        increment = TableIncrement(
            frozen,
            lambda: _plan(chain, changes, cut, live_rows),
            lambda chain: self.log.on_written(checkpoint_id, chain),
        )
        return FrozenState(self.descriptor.name, "table", schema, len(self), iter(()), increment)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which rows to write (None: all live ones), and the chain that results from their file."""

    rows: Mask | None
    chain_with: Callable[[FileHandle], DeltaChain]
    unchanged: DeltaChain | None = None  # set if there is nothing to write


def _plan(chain: DeltaChain | None, changes: Changes, cut: int, live_rows: int) -> _Plan:
    """1. A delta, while the chain has room. 2. One delta in place of all. 3. A new base."""
    if chain is not None:
        recent = changes.since(chain.cut)
        count = int(np.count_nonzero(recent))
        if count == 0 or chain.has_room_for(count):
            return _Plan(
                recent,
                lambda file: replace(
                    chain,
                    deltas=(*chain.deltas, file),
                    delta_rows=chain.delta_rows + count,
                    cut=cut,
                ),
                replace(chain, cut=cut) if count == 0 else None,
            )
        all_since_base = changes.since(chain.base_cut)
        total = int(np.count_nonzero(all_since_base))
        if total <= chain.base_rows * DELTA_SHARE_MAX / 2:
            return _Plan(
                all_since_base,
                lambda file: replace(chain, deltas=(file,), delta_rows=total, cut=cut),
            )
    return _Plan(None, lambda file: DeltaChain(file, cut, live_rows, cut=cut))


@dataclass(frozen=True, slots=True)
class TableIncrement:
    """Implements `Increment`. Counts the rows to write here, off the subtask's thread."""

    frozen: FrozenTable
    plan: Callable[[], _Plan]
    on_written: Callable[[DeltaChain], None]

    def write(self, files: IncrementFiles) -> StoredIncrement:
        plan = self.plan()
        chain = plan.unchanged or plan.chain_with(self._file(files, plan.rows))
        self.on_written(chain)
        parts = tuple(StatePart(name="delta", file=delta) for delta in chain.deltas)
        return StoredIncrement(StateFormat.DELTAS, chain.base, parts)

    def _file(self, files: IncrementFiles, rows: Mask | None) -> FileHandle:
        label = "base" if rows is None else "delta"
        schema = increment_schema(self.frozen.schema)
        return files.write_rows(label, schema, self.frozen.increment(rows))


def merged_rows(
    newest_first: Iterable[Iterable[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """The live rows of a chain, given its files; for each row number the newest file decides."""
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
