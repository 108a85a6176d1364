"""The rows of a RocksDB table that are in memory, and the changes not yet in the database.

Owns the status of each such row: whether its key is in the database, whether it was changed or
deleted since the last cut, and when it was last used, so that the least recently used rows can
leave memory. Deleted rows whose keys may still be in the database stay in memory as deleted until
the flush that removes them is done. An epoch lasts from one cut to the next. `rocksdb_table` owns
the rows on disk.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import check
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.backend import NO_ROW, Rows, ScanPosition, TableDescriptor
from pipelines.state.hashing import KeyGroups
from pipelines.state.in_memory.key_rows import HashKeys
from pipelines.state.in_memory.table import DirtyRows, FrozenTable, HashMapTable, Mask
from pipelines.state.on_disk.sorted_files import Flush

RowNumbers = npt.NDArray[np.int64]


class RecentUse:
    """Records when rows were last used; counts time in calls of the operator."""

    def __init__(self) -> None:
        self._used: RowNumbers = np.zeros(0, np.int64)  # by row
        self._now = 0

    def tick(self) -> None:
        self._now += 1

    def note(self, rows: RowNumbers, length: int) -> None:
        """Notes a use of these rows; all row numbers are below `length`."""
        if length > len(self._used):
            larger = np.zeros(max(length, 2 * len(self._used)), np.int64)
            larger[: len(self._used)] = self._used
            self._used = larger
        self._used[rows] = self._now

    def oldest(self, rows: RowNumbers, count: int) -> RowNumbers:
        """Returns the `count` least recently used of these rows, which must all have been noted."""
        if count >= len(rows):
            return rows
        return rows[np.argpartition(self._used[rows], count)[:count]]


class DeletedRows:
    def __init__(self) -> None:
        self._now: list[RowNumbers] = []
        self._waiting: list[tuple[Flush, int, RowNumbers]] = []  # with the epoch of their deletion

    def add(self, rows: RowNumbers) -> None:
        self._now.append(rows)

    def on_cut(self, flush: Flush, epoch: int) -> None:
        """Notes that this flush removes the rows deleted in this epoch from the database."""
        if self._now:
            self._waiting.append((flush, epoch, np.concatenate(self._now)))
            self._now = []

    def taken_over(self) -> Iterator[tuple[int, RowNumbers]]:
        """Yields, once each, the epochs and rows whose deletion the database has taken over."""
        while self._waiting and self._waiting[0][0].is_done:
            _, epoch, rows = self._waiting.pop(0)
            yield epoch, np.unique(rows)


ORIGIN = "__origin"
"""A row's origin: FRESH, STORED, the epoch in which its key was new, or minus one minus the epoch
in which it was deleted. An epoch lasts from one cut to the next; the first is 1."""

FRESH = 0  # just made; it is not known yet whether the key is in the database
STORED = -1  # the key is in the database, or will be after the next flush

Changed = tuple[pa.RecordBatch, Mask]
"""The changed rows, and flags for the deleted ones."""


class WorkingRows:
    def __init__(
        self,
        descriptor: TableDescriptor,
        own_groups: KeyGroupRange,
        max_parallelism: int,
        hash_keys: HashKeys,
    ) -> None:
        working = replace(
            descriptor,
            value=pa.schema([*descriptor.value, (ORIGIN, pa.int64())]),
            defaults={**descriptor.defaults, ORIGIN: FRESH},
        )
        self._table = HashMapTable(working, own_groups, max_parallelism, hash_keys)
        self._dirty = DirtyRows()
        self._deleted = DeletedRows()
        self._use = RecentUse()
        self._epoch = 1

    @property
    def state_bytes(self) -> int:
        return self._table.state_bytes

    @property
    def unwritten_bytes(self) -> int:
        """The approximate number of bytes that the next flush writes to the database."""
        row_bytes = max(1, self.state_bytes // max(1, len(self._table)))
        return self._dirty.count() * row_bytes

    def find(self, keys: pa.RecordBatch) -> tuple[Rows, Mask]:
        """Returns the row of each live key, else NO_ROW; flags all keys in memory, deleted too."""
        rows = self._table.find(keys)
        is_known = rows != NO_ROW
        known = rows[is_known]
        rows[is_known] = np.where(self._origins(known) >= STORED, known, NO_ROW)
        return rows, is_known

    def rows_for(self, keys: pa.RecordBatch) -> Rows:
        """Returns the rows of the keys, including deleted ones; unseen keys get fresh rows."""
        return self._table.rows_for(keys)

    def fresh_among(self, rows: Rows) -> Rows:
        """Returns the distinct rows for which it is not known yet if their keys are on disk."""
        fresh = self._origins(rows) == FRESH
        return np.unique(rows[fresh]) if fresh.any() else _NO_ROWS

    def deleted_among(self, rows: Rows) -> Rows:
        deleted = self._origins(rows) < STORED
        return np.unique(rows[deleted]) if deleted.any() else _NO_ROWS

    def live_among(self, rows: Rows) -> Rows:
        return rows[self._origins(rows) >= STORED]

    def add_new(self, rows: Rows) -> None:
        """Marks fresh rows as new, because their keys are not in the database."""
        self._table.write(ORIGIN, rows, np.full(len(rows), self._epoch))
        self._dirty.mark(rows)

    def add_stored(self, rows: Rows, values: pa.RecordBatch) -> None:
        """Fills fresh rows with the values from the database."""
        for name in values.schema.names:
            self._table.write_arrow(name, rows, values.column(name))
        self._table.write(ORIGIN, rows, np.full(len(rows), STORED))

    def revive(self, rows: Rows) -> None:
        """Revives deleted rows that are still in memory, because their keys have returned."""
        self._table.reset(rows)
        self._table.write(ORIGIN, rows, np.full(len(rows), STORED))
        self._dirty.mark(rows)

    def read(self, column: str, rows: Rows) -> npt.NDArray[np.generic]:
        return self._table.read(column, rows)

    def read_arrow(self, column: str, rows: Rows) -> pa.Array:
        return self._table.read_arrow(column, rows)

    def write(self, column: str, rows: Rows, values: npt.NDArray[np.generic]) -> None:
        self._dirty.mark(rows)
        self._table.write(column, rows, values)

    def write_arrow(self, column: str, rows: Rows, values: pa.Array) -> None:
        self._dirty.mark(rows)
        self._table.write_arrow(column, rows, values)

    def delete(self, rows: Rows) -> None:
        origin = self._origins(rows)
        check(bool((origin >= STORED).all()), "only live rows are deleted")
        is_new = origin == self._epoch  # neither the database nor any cut contains it
        self._dirty.clear(rows[is_new])
        self._table.delete(rows[is_new])
        known = rows[~is_new]
        self._table.write(ORIGIN, known, np.full(len(known), STORED - self._epoch))
        self._dirty.mark(known)
        self._deleted.add(known)

    def select_at_most(self, key_column: str, bound: int) -> Rows:
        return self.live_among(self._table.select_at_most(key_column, bound))

    def scan(self, after: ScanPosition | None, limit: int) -> tuple[Rows, ScanPosition | None]:
        rows, position = self._table.scan(after, limit)
        return self.live_among(rows), position

    def keys(self, rows: Rows) -> pa.RecordBatch:
        return self._table.keys(rows)

    def key_groups_of(self, keys: pa.RecordBatch) -> KeyGroups:
        return self._table.key_groups_of(keys)

    def note_use(self, rows: Rows) -> None:
        self._use.note(rows, self._table.length)

    def settle(self) -> None:
        """Ends one call of the operator; forgets deletions that the database has taken over."""
        self._use.tick()
        self.forget_deleted()

    def freeze(self) -> Iterator[pa.RecordBatch]:
        """Freezes all live rows as they are now; the result may be read once, on any thread."""
        return _live(self._table.freeze_rows())

    def cut(self) -> Callable[[], Changed]:
        """Freezes the changes up to now. Call the result once, on any thread; `on_cut` follows."""
        frozen, dirty = self._table.freeze_rows(), self._dirty.take()
        return lambda: _changed(frozen, dirty)

    def on_cut(self, flush: Flush) -> None:
        """Notes that `flush` will write the changes of the last `cut` to the database."""
        self._deleted.on_cut(flush, self._epoch)
        self._epoch += 1

    def forget_deleted(self) -> None:
        """Removes the rows from memory whose deletion the database has taken over."""
        for epoch, rows in self._deleted.taken_over():
            # A key may have come back since, and may even have been deleted again.
            still = self._origins(rows) == STORED - epoch
            self._table.delete(rows[still])

    def least_used(self, share_kept: float) -> Rows:
        """Returns the rows that have to leave memory if only `share_kept` of them may stay."""
        rows = self._table.live_rows()
        self.note_use(_NO_ROWS)
        return self._use.oldest(rows, len(rows) - int(len(rows) * share_kept))

    def evict(self, rows: Rows) -> None:
        """Forgets rows whose current content is in the database."""
        self._table.delete(rows)

    def _origins(self, rows: Rows) -> Rows:
        return self._table.read(ORIGIN, rows).astype(np.int64, copy=False)


_NO_ROWS: Rows = np.empty(0, np.int64)


def _live(frozen: FrozenTable) -> Iterator[pa.RecordBatch]:
    for batch in frozen.batches():
        is_live = pc.greater_equal(batch.column(ORIGIN), STORED)
        yield batch.filter(is_live).drop_columns([ORIGIN])


def _changed(frozen: FrozenTable, dirty: Mask) -> Changed:
    batches = frozen.batches(dirty)
    rows = pa.Table.from_batches(batches, frozen.schema).combine_chunks().to_batches()
    changed = rows[0] if rows else pa.RecordBatch.from_pylist([], schema=frozen.schema)
    return changed, changed.column(ORIGIN).to_numpy() < STORED
