"""One keyed table of the RocksDB backend: a working set in memory over a database on disk.

Rows that an operator touches are held in a table of the hashmap backend; those that were changed
since the last cut go to the database in one sorted file. When the working set outgrows its share
of the memory, the rows that were not used for longest leave it. Owns which row is where; what
lies in memory is `table`, what lies on disk `sorted_files`.

Source: Flink's `RocksDBKeyedStateBackend`; the vectorised working set is ours.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.domain.ids import CheckpointId
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.arrow_types import as_integers, decoded
from pipelines.state.backend import (
    NO_ROW,
    FrozenState,
    Increment,
    Rows,
    ScanPosition,
    TableDescriptor,
)
from pipelines.state.database_increment import (
    CutDatabase,
    DatabaseIncrement,
    LinkedFiles,
    Reusable,
    WholeDatabase,
)
from pipelines.state.dirty_rows import DirtyRows, Mask
from pipelines.state.flushes import CutReader, Flush, Flushes
from pipelines.state.frozen_table import FrozenTable, snapshot_schema
from pipelines.state.hashing import KeyGroups, is_integer_like
from pipelines.state.increment_log import IncrementLog
from pipelines.state.memory_share import SlotMemory
from pipelines.state.row_codec import RowCodec, bytes_list
from pipelines.state.sorted_files import SortedFiles
from pipelines.state.sorted_table_rows import SortedTableRows
from pipelines.state.stored_database import decoded_rows
from pipelines.state.table import HashKeys, HashMapTable

ORIGIN = "__origin"
"""Of a row in memory: FRESH, STORED, the epoch in which its key was new, or minus one minus the
epoch in which it was deleted. An epoch lasts from one cut to the next; the first is 1."""

FRESH = 0  # just made by the working set; whether the database knows the key is to be found out
STORED = -1  # the database knows the key, or will by the next flush

SCAN_ROWS = 1 << 16
ROOM_PER_BYTE = 4
"""Memory that a byte of a row stands for: columns and index have room to grow, and a flush holds
the changed rows a second time, encoded."""


class RocksDbTable:
    """Implements `Table`. Used by the subtask's thread only; cuts are read by another."""

    def __init__(
        self,
        descriptor: TableDescriptor,
        own_groups: KeyGroupRange,
        max_parallelism: int,
        hash_keys: HashKeys,
        files: SortedFiles,
        memory: SlotMemory,
        scratch: Callable[[], Path],
    ) -> None:
        working = replace(
            descriptor,
            value=pa.schema([*descriptor.value, (ORIGIN, pa.int64())]),
            defaults={**descriptor.defaults, ORIGIN: FRESH},
        )
        self._descriptor = descriptor
        self._working = HashMapTable(working, own_groups, max_parallelism, hash_keys)
        self._files = files
        self._memory = memory
        self._scratch = scratch
        self.log: IncrementLog[Reusable] = IncrementLog()
        self._flushes = Flushes(files)
        self._key_codec = RowCodec(descriptor.key, with_group=True)
        self._value_codec = RowCodec(descriptor.value, with_group=False)
        self._dirty = DirtyRows()
        self._epoch = 1
        self._count = 0
        self._on_disk_only = 0
        self._deleted: list[tuple[Flush, int, Rows]] = []  # by flush and epoch
        self._deleted_now: list[Rows] = []
        self._used: npt.NDArray[np.int64] = np.zeros(0, np.int64)  # when, by row
        self._now = 0
        # No number of a row that is on disk only is below it, by key column.
        self._least = {f.name: _LARGEST for f in descriptor.key if is_integer_like(f.type)}
        memory.join()

    def __len__(self) -> int:
        return self._count

    @property
    def descriptor(self) -> TableDescriptor:
        return self._descriptor

    @property
    def state_bytes(self) -> int:
        unwritten = self._dirty.count() * self._row_bytes
        return self._files.live_bytes + unwritten

    def rows_for(self, keys: pa.RecordBatch) -> Rows:
        rows = self._known_rows(keys)
        origin = self._origins(rows)
        if (origin < STORED).any():
            self._revive(np.unique(rows[origin < STORED]))
        return rows

    def find(self, keys: pa.RecordBatch) -> Rows:
        rows = self._working.find(keys)
        in_memory = rows != NO_ROW
        known = rows[in_memory]
        rows[in_memory] = np.where(self._origins(known) >= STORED, known, NO_ROW)
        if self._on_disk_only and not in_memory.all():
            elsewhere = np.flatnonzero(~in_memory)
            rows[elsewhere] = self._find_on_disk(decoded(keys).take(pa.array(elsewhere)))
        self._note_use(rows[rows != NO_ROW])
        return rows

    def read(self, column: str, rows: Rows) -> npt.NDArray[np.generic]:
        return self._working.read(column, rows)

    def read_arrow(self, column: str, rows: Rows) -> pa.Array:
        return self._working.read_arrow(column, rows)

    def write(self, column: str, rows: Rows, values: npt.NDArray[np.generic]) -> None:
        self._dirty.mark(rows)
        self._working.write(column, rows, values)

    def write_arrow(self, column: str, rows: Rows, values: pa.Array) -> None:
        self._dirty.mark(rows)
        self._working.write_arrow(column, rows, values)

    def delete(self, rows: Rows) -> None:
        if not len(rows):
            return
        origin = self._origins(rows)
        check(bool((origin >= STORED).all()), "only live rows are deleted")
        self._count -= len(rows)
        is_new = origin == self._epoch  # neither the database nor any cut has heard of it
        self._dirty.clear(rows[is_new])
        self._working.delete(rows[is_new])
        known = rows[~is_new]
        self._working.write(ORIGIN, known, np.full(len(known), STORED - self._epoch))
        self._dirty.mark(known)
        self._deleted_now.append(known)

    def select_at_most(self, key_column: str, bound: int) -> Rows:
        if self._on_disk_only and self._least[key_column] <= bound:
            self._load_at_most(key_column, bound)
        rows = self._working.select_at_most(key_column, bound)
        return rows[self._origins(rows) >= STORED]

    def scan(self, after: ScanPosition | None, limit: int) -> tuple[Rows, ScanPosition | None]:
        """First the memory by row, then the disk by key: a row is always in one of them, and one
        that is read from the disk or leaves for it meanwhile is met in the second part."""
        if isinstance(after, bytes):
            return self._scan_disk(after, limit)
        rows, position = self._working.scan(after, limit)
        rows = rows[self._origins(rows) >= STORED]
        if position is None and self._on_disk_only:
            position = b""
        return rows, position

    def keys(self, rows: Rows) -> pa.RecordBatch:
        return self._working.keys(rows)

    def key_groups_of(self, keys: pa.RecordBatch) -> KeyGroups:
        return self._working.key_groups_of(keys)

    def settle(self) -> None:
        """Between two calls of the operator: rows may leave the memory, so numbers are void."""
        self._now += 1
        self._forget_deleted()
        if self._working_bytes > self._memory.bytes_per_state:
            self._make_room()

    def close(self) -> None:
        self._files.close()

    def freeze(self) -> FrozenState:
        reader = _Scan(self._key_codec, self._value_codec)
        flush = self._cut(reader)
        batches = reader.batches(self._flushes, flush)
        schema = snapshot_schema(self._descriptor)
        return FrozenState(self._descriptor.name, "table", schema, self._count, batches)

    def freeze_increment(
        self, checkpoint_id: CheckpointId, confirmed_id: CheckpointId
    ) -> FrozenState:
        if not self._count:
            self.log.on_written(checkpoint_id, None)
        increment = DatabaseIncrement(
            self._cut_database(),
            self.log.base(confirmed_id) or {},
            lambda files: self.log.on_written(checkpoint_id, files),
        )
        return self._frozen(increment)

    def freeze_native(self) -> FrozenState:
        return self._frozen(WholeDatabase(self._cut_database()))

    def adopt(self, files: SortedFiles, rows: int, reusable: Reusable) -> None:
        """Go on with the database of a snapshot, which holds `rows` rows of own key groups."""
        check(self._count == 0, "only an empty table takes a database over", rows=self._count)
        self._files.close()
        self._files, self._flushes = files, Flushes(files)
        self.log = IncrementLog(reusable)
        self._count = self._on_disk_only = rows
        self._least = dict.fromkeys(self._least, _SMALLEST)  # nothing is known of these rows

    def _cut_database(self) -> CutDatabase:
        links, schema = LinkedFiles(self._scratch()), snapshot_schema(self._descriptor)
        flush = self._cut(links)
        return CutDatabase(self._flushes, flush, links, schema, len(self._descriptor.key))

    def _frozen(self, increment: Increment) -> FrozenState:
        name, schema = self._descriptor.name, snapshot_schema(self._descriptor)
        return FrozenState(name, "table", schema, self._count, iter(()), increment)

    def _known_rows(self, keys: pa.RecordBatch) -> Rows:
        """Rows of the keys, also of those that are deleted but still in memory."""
        rows = self._working.rows_for(keys)
        fresh = self._origins(rows) == FRESH
        if fresh.any():
            self._find_out(np.unique(rows[fresh]))
        self._note_use(rows)
        return rows

    def _origins(self, rows: Rows) -> Rows:
        return self._working.read(ORIGIN, rows).astype(np.int64, copy=False)

    def _find_out(self, fresh: Rows) -> None:
        """Load what the database knows of rows that the working set has just made."""
        unknown = fresh
        if self._on_disk_only:
            keys = self._working.keys(fresh)
            packed = self._key_codec.encode(
                keys.columns, len(fresh), self._working.key_groups_of(keys)
            )
            found = self._files.get(bytes_list(packed))
            is_known = np.array([value is not None for value in found], np.bool_)
            self._load(fresh[is_known], [value for value in found if value is not None])
            unknown = fresh[~is_known]
        self._count += len(unknown)
        self._working.write(ORIGIN, unknown, np.full(len(unknown), self._epoch))
        self._dirty.mark(unknown)

    def _find_on_disk(self, keys: pa.RecordBatch) -> Rows:
        """Keys that are not in memory; those that the database knows are loaded."""
        groups = self._working.key_groups_of(keys)
        packed = self._key_codec.encode(keys.columns, keys.num_rows, groups)
        found = self._files.get(bytes_list(packed))
        at = np.array([i for i, value in enumerate(found) if value is not None], np.int64)
        rows = np.full(len(found), NO_ROW, np.int64)
        rows[at] = self._working.rows_for(keys.take(pa.array(at)))
        distinct, first = np.unique(rows[at], return_index=True)
        self._load(distinct, [value for i in at[first] if (value := found[i]) is not None])
        return rows

    def _scan_disk(self, after: bytes, limit: int) -> tuple[Rows, ScanPosition | None]:
        chunk = list(islice(self._files.scan(after), limit))
        if not chunk:
            return np.empty(0, np.int64), None
        keys, _ = self._key_codec.decode([key for key, _ in chunk])
        rows = self.find(keys)
        following = chunk[-1][0] + b"\0"  # the least key above the last one
        return rows[rows != NO_ROW], following if len(chunk) == limit else None

    def _load(self, rows: Rows, values: list[bytes]) -> None:
        if not len(rows):
            return
        batch, _ = self._value_codec.decode(values)
        for name in self._descriptor.value.names:
            self._working.write_arrow(name, rows, batch.column(name))
        self._working.write(ORIGIN, rows, np.full(len(rows), STORED))
        self._on_disk_only -= len(rows)

    def _revive(self, rows: Rows) -> None:
        """Keys that come back after their rows were deleted, and before memory forgot them."""
        self._working.reset(rows)
        self._working.write(ORIGIN, rows, np.full(len(rows), STORED))
        self._dirty.mark(rows)
        self._count += len(rows)

    def _load_at_most(self, key_column: str, bound: int) -> None:
        """Bring the due rows of the disk into memory; finds the next bound on the way."""
        least = _LARGEST
        rows = self._files.scan()
        while chunk := list(islice(rows, SCAN_ROWS)):
            keys, _ = self._key_codec.decode([key for key, _ in chunk])
            numbers = as_integers(keys.column(key_column))
            valid = keys.column(key_column).is_valid().to_numpy(zero_copy_only=False)
            due = valid & (numbers <= bound)
            least = min(least, int(numbers.min(where=valid & ~due, initial=_LARGEST)))
            if due.any():
                self._known_rows(keys.filter(pa.array(due)))
        self._least[key_column] = least

    def _cut(self, reader: CutReader | None) -> Flush:
        """Note what has changed since the last cut; somebody will write it."""
        frozen, dirty = self._working.freeze_rows(), self._dirty.take()
        flush = Flush(lambda: self._sorted(frozen, dirty), reader)
        self._flushes.add(flush)
        if self._deleted_now:
            self._deleted.append((flush, self._epoch, np.concatenate(self._deleted_now)))
            self._deleted_now = []
        self._epoch += 1
        return flush

    def _sorted(self, frozen: FrozenTable, dirty: Mask) -> SortedTableRows:
        batches = frozen.batches(dirty)
        rows = pa.Table.from_batches(batches, frozen.schema).combine_chunks().to_batches()
        changed = rows[0] if rows else pa.RecordBatch.from_pylist([], schema=frozen.schema)
        is_deleted = changed.column(ORIGIN).to_numpy() < STORED
        return SortedTableRows.of(changed, is_deleted, self._key_codec, self._value_codec)

    def _forget_deleted(self) -> None:
        """Rows whose deletion the database has taken over leave the memory."""
        while self._deleted and self._deleted[0][0].is_done:
            _, epoch, rows = self._deleted.pop(0)
            rows = np.unique(rows)
            # A key may have come back meanwhile, and may even be deleted again.
            still = self._origins(rows) == STORED - epoch
            self._working.delete(rows[still])

    def _make_room(self) -> None:
        """Write what has changed, then let go of what was not used for longest."""
        flush = self._cut(None)
        self._flushes.run_until(flush)
        self._forget_deleted()
        rows = self._working.live_rows()
        share = self._memory.bytes_per_state / max(1, self._working_bytes)
        kept = int(len(rows) * min(1.0, share)) // 2
        if kept >= len(rows):
            return
        self._note_use(np.empty(0, np.int64))
        oldest = np.argpartition(self._used[rows], len(rows) - kept - 1)[: len(rows) - kept]
        self._evict(rows[oldest])

    def _evict(self, rows: Rows) -> None:
        keys = self._working.keys(rows)
        for name in self._least:
            numbers = as_integers(keys.column(name).drop_null())
            self._least[name] = min(self._least[name], int(numbers.min(initial=_LARGEST)))
        self._working.delete(rows)
        self._on_disk_only += len(rows)

    def _note_use(self, rows: Rows) -> None:
        length = self._working.length
        if length > len(self._used):
            larger = np.zeros(max(length, 2 * len(self._used)), np.int64)
            larger[: len(self._used)] = self._used
            self._used = larger
        self._used[rows] = self._now

    @property
    def _working_bytes(self) -> int:
        return self._working.state_bytes * ROOM_PER_BYTE

    @property
    def _row_bytes(self) -> int:
        return max(1, self._working.state_bytes // max(1, len(self._working)))


_LARGEST = int(np.iinfo(np.int64).max)
_SMALLEST = int(np.iinfo(np.int64).min)


class _Scan:
    """Reads the whole table as it was at one cut."""

    def __init__(self, key_codec: RowCodec, value_codec: RowCodec) -> None:
        self._key_codec = key_codec
        self._value_codec = value_codec
        self._rows: Iterator[tuple[bytes, bytes]] = iter(())

    def on_flushed(self, files: SortedFiles) -> None:
        self._rows = files.scan()

    def batches(self, flushes: Flushes, flush: Flush) -> Iterator[pa.RecordBatch]:
        flushes.run_until(flush)
        yield from decoded_rows(self._rows, self._key_codec, self._value_codec)
