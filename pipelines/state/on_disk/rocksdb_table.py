"""One keyed table of the RocksDB backend: a working set in memory over a database on disk.

Rows that an operator touches are kept in memory (`working_rows`). The rows changed since the last
cut go to the database in one sorted file, in the order of the keys. When the working set outgrows
its share of the memory, the least recently used rows leave it. The table decides where each row is.
One bound per integer key column tells, without a read of the disk, whether rows that are only on
disk may be due; a bound may be too low, never too high. A filter tells which keys are not on disk:
RocksDB's own filters, one in each file, answer only 200,000 keys a second.

Source: Flink's `RocksDBKeyedStateBackend`; Putze et al., "Cache-, hash- and space-efficient Bloom
filters" (2007), for the filter. The vectorised working set is ours.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.domain.ids import CheckpointId
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.arrow_types import decoded
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    NO_ROW,
    FrozenState,
    Increment,
    IncrementLog,
    Rows,
    ScanPosition,
    TableDescriptor,
)
from pipelines.state.hashing import Hashes, KeyGroups, as_integers, is_integer_like
from pipelines.state.in_memory.key_rows import HashKeys
from pipelines.state.in_memory.table import Mask, snapshot_schema
from pipelines.state.on_disk.sorted_files import (
    CutDatabase,
    CutReader,
    DatabaseIncrement,
    Flush,
    Flushes,
    LinkedFiles,
    Reusable,
    SlotMemory,
    SortedFiles,
    SortedRows,
    WholeDatabase,
)
from pipelines.state.on_disk.stored_database import (
    Packed,
    RowCodec,
    bytes_list,
    decoded_rows,
    sort_order,
    take,
)
from pipelines.state.on_disk.working_rows import WorkingRows

PART_ROWS = 1 << 13  # the most rows that exist as Python objects at a time


class SortedTableRows:
    """The changed rows of a cut, encoded and in order; can be read repeatedly."""

    def __init__(self, keys: Packed, values: Packed, gone: Mask) -> None:
        self._keys = keys
        self._values = values
        self._gone = gone

    @classmethod
    def of(
        cls, rows: pa.RecordBatch, gone: Mask, key_codec: RowCodec, value_codec: RowCodec
    ) -> "SortedTableRows":
        groups = rows.column(KEY_GROUP_COLUMN).to_numpy()
        count = rows.num_rows
        keys = key_codec.encode(rows.select(key_codec.schema.names).columns, count, groups)
        order = sort_order(keys)
        keys = take(keys, order)  # one after the other, so that only one exists twice at a time
        values = value_codec.encode(rows.select(value_codec.schema.names).columns, count)
        return cls(keys, take(values, order), gone[order])

    def __call__(self) -> SortedRows:
        for start in range(0, len(self._gone), PART_ROWS):
            part = slice(start, start + PART_ROWS)
            keys, values = bytes_list(self._keys[part]), bytes_list(self._values[part])
            for key, value, gone in zip(keys, values, self._gone[part].tolist(), strict=True):
                yield key, None if gone else value


SCAN_ROWS = 1 << 16


class TableFiles:
    def __init__(self, descriptor: TableDescriptor, files: SortedFiles) -> None:
        self._files = files
        self._key_codec = RowCodec(descriptor.key, with_group=True)
        self._value_codec = RowCodec(descriptor.value, with_group=False)
        self.flushes = Flushes(files)

    @property
    def live_bytes(self) -> int:
        return self._files.live_bytes

    def close(self) -> None:
        self._files.close()

    def find(self, keys: pa.RecordBatch, groups: KeyGroups) -> tuple[Rows, pa.RecordBatch]:
        """Returns the positions of the keys that exist here, and their values."""
        packed = self._key_codec.encode(keys.columns, keys.num_rows, groups)
        order = sort_order(packed)  # so that neighbours are in the same block
        found = self._files.get(bytes_list(take(packed, order)))
        at = order[[value is not None for value in found]]
        if not len(at):
            return at, pa.RecordBatch.from_pylist([], schema=self._value_codec.schema)
        values, _ = self._value_codec.decode([value for value in found if value is not None])
        return at, values

    def scan_keys(self, after: bytes, limit: int) -> tuple[pa.RecordBatch | None, bytes | None]:
        """Returns the keys of at most `limit` rows from `after` on, and where to continue.

        None means that no rows follow.
        """
        chunk = list(islice(self._files.scan_keys(after), limit))
        if not chunk:
            return None, None
        keys, _ = self._key_codec.decode(chunk)
        following = chunk[-1] + b"\0"  # the least key above the last one
        return keys, following if len(chunk) == limit else None

    def all_keys(self) -> Iterator[pa.RecordBatch]:
        rows = self._files.scan_keys()
        while chunk := list(islice(rows, SCAN_ROWS)):
            keys, _ = self._key_codec.decode(chunk)
            yield keys

    def in_order(self, changed: pa.RecordBatch, is_deleted: Mask) -> SortedTableRows:
        """Returns the changed rows as the database stores them."""
        return SortedTableRows.of(changed, is_deleted, self._key_codec, self._value_codec)

    def reader(self) -> "CutScan":
        return CutScan(self._key_codec, self._value_codec)


class CutScan:
    """Implements `CutReader`: reads the whole table as it was at one cut."""

    def __init__(self, key_codec: RowCodec, value_codec: RowCodec) -> None:
        self._key_codec = key_codec
        self._value_codec = value_codec
        self._rows: Iterator[tuple[bytes, bytes]] = iter(())

    def on_flushed(self, files: SortedFiles) -> None:
        self._rows = files.scan()

    def batches(self, flushes: Flushes, flush: Flush) -> Iterator[pa.RecordBatch]:
        flushes.run_until(flush)
        yield from decoded_rows(self._rows, self._key_codec, self._value_codec)


_LARGEST = int(np.iinfo(np.int64).max)
_SMALLEST = int(np.iinfo(np.int64).min)


@dataclass(slots=True)
class Search:
    """A search for rows on disk whose key column is <= `bound`."""

    key_column: str
    bound: int
    later: int = _LARGEST  # the smallest number above the bound that the search met

    def due_among(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        numbers = as_integers(keys.column(self.key_column))
        valid = keys.column(self.key_column).is_valid().to_numpy(zero_copy_only=False)
        due = valid & (numbers <= self.bound)
        self.later = min(self.later, int(numbers.min(where=valid & ~due, initial=_LARGEST)))
        return keys.filter(pa.array(due))


class DiskBounds:
    def __init__(self, key: pa.Schema) -> None:
        # By key column: no row that is only on disk has a smaller number.
        self._least = {f.name: _LARGEST for f in key if is_integer_like(f.type)}

    def may_hold(self, key_column: str, bound: int) -> bool:
        """True if a row whose key column is <= `bound` may be only on disk."""
        return self._least[key_column] <= bound

    def on_evicted(self, keys: pa.RecordBatch) -> None:
        """Notes that the rows of these keys are now only on disk."""
        for name in self._least:
            numbers = as_integers(keys.column(name).drop_null())
            self._least[name] = min(self._least[name], int(numbers.min(initial=_LARGEST)))

    def on_unknown(self) -> None:
        """Notes that nothing is known about the rows on disk."""
        self._least = dict.fromkeys(self._least, _SMALLEST)

    def on_searched(self, search: Search) -> None:
        """Notes that a search has met every row on disk; the due ones are in memory now."""
        self._least[search.key_column] = search.later


_BITS_PER_KEY = 12
_FIRST_WORDS = 1 << 12
_GROWTH = 4
_WORD_BITS = 6  # choose one of the 64 bits of a word
_MIXED_BY = np.uint64(0xFF51AFD7ED558CCD)

Words = npt.NDArray[np.uint64]


class KeyFilter:
    """A Bloom filter: tells whether a key was certainly not added, or may have been.

    For a few percent of the keys that were not added, it says that they may have been. Each key
    sets three bits of one word. If more keys are added than fit into `bytes_max`, the filter says
    that any key may have been added.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.clear()

    def clear(self) -> None:
        self._parts: list[Words] = []  # each larger than the one before
        self._room = 0  # keys that the last part can still take
        self._knows = True

    def on_unknown(self) -> None:
        """From now on, any key may have been added."""
        self.clear()
        self._knows = False

    def may_hold(self, hashes: Hashes) -> Mask:
        if not self._knows:
            return np.ones(len(hashes), np.bool_)
        held = np.zeros(len(hashes), np.bool_)
        for part in self._parts:
            places, bits = _places(hashes, len(part))
            held |= (part[places] & bits) == bits
        return held

    def add(self, hashes: Hashes) -> None:
        if not self._knows:
            return
        new = hashes[~self.may_hold(hashes)]
        while len(new) and self._knows:
            if not self._room:
                self._grow()
                continue
            now, new = new[: self._room], new[self._room :]
            self._room -= len(now)
            np.bitwise_or.at(self._parts[-1], *_places(now, len(self._parts[-1])))

    def _grow(self) -> None:
        words = len(self._parts[-1]) * _GROWTH if self._parts else _FIRST_WORDS
        if sum(part.nbytes for part in self._parts) + 8 * words > self._bytes_max:
            self.on_unknown()
            return
        self._parts.append(np.zeros(words, np.uint64))
        self._room = 64 * words // _BITS_PER_KEY


def _places(hashes: Hashes, words: int) -> tuple[npt.NDArray[np.int64], Words]:
    """Returns each key's word, by the high bits of its hash, and its bits there, by low bits."""
    mixed = (hashes ^ (hashes >> np.uint64(33))) * _MIXED_BY
    places = (mixed >> np.uint64(64 - words.bit_length() + 1)).astype(np.int64)
    one, choice = np.uint64(1), np.uint64((1 << _WORD_BITS) - 1)
    bits = np.zeros(len(hashes), np.uint64)
    for shift in range(8, 8 + 3 * _WORD_BITS, _WORD_BITS):
        bits |= one << ((mixed >> np.uint64(shift)) & choice)
    return places, bits


_NOTHING: Rows = np.empty(0, np.int64)

FILTER_SHARE = 16
"""The filter takes at most 1 / FILTER_SHARE of the memory for the rows of a state."""


class RocksDbTable:
    """Implements `Table`. Used by the subtask's thread only; another thread reads cuts."""

    def __init__(
        self,
        *,
        descriptor: TableDescriptor,
        own_groups: KeyGroupRange,
        max_parallelism: int,
        hash_keys: HashKeys,
        files: SortedFiles,
        memory: SlotMemory,
        scratch: Callable[[], Path],
    ) -> None:
        self._descriptor = descriptor
        self._hash_keys = hash_keys
        self._working = WorkingRows(descriptor, own_groups, max_parallelism, hash_keys)
        self._files = TableFiles(descriptor, files)
        self._memory = memory
        self._scratch = scratch
        self.log: IncrementLog[Reusable] = IncrementLog()
        self._count = 0
        self._on_disk_only = 0
        self._bounds = DiskBounds(descriptor.key)
        memory.join()
        self._filter = KeyFilter(memory.bytes_per_state // FILTER_SHARE)

    def __len__(self) -> int:
        return self._count

    @property
    def descriptor(self) -> TableDescriptor:
        return self._descriptor

    @property
    def state_bytes(self) -> int:
        return self._files.live_bytes + self._working.unwritten_bytes

    def rows_for(self, keys: pa.RecordBatch) -> Rows:
        return self._entered(keys)[0]

    def enter(self, keys: pa.RecordBatch, group_hashes: Hashes | None = None) -> tuple[Rows, Mask]:
        rows, new = self._entered(keys)
        is_new = np.zeros(len(rows), np.bool_)
        of_new = np.flatnonzero(np.isin(rows, new)) if len(new) else _NOTHING
        is_new[of_new[np.unique(rows[of_new], return_index=True)[1]]] = True  # first of equal ones
        return rows, is_new

    def group_hashes(self, rows: pa.RecordBatch) -> Hashes:
        return self._hash_keys(rows, self._descriptor.key_group_by)

    def find(self, keys: pa.RecordBatch) -> Rows:
        rows, is_known = self._working.find(keys)
        if self._on_disk_only and not is_known.all():
            elsewhere = self._maybe_on_disk(keys, np.flatnonzero(~is_known))
            if len(elsewhere):
                rows[elsewhere] = self._find_on_disk(decoded(keys).take(pa.array(elsewhere)))
        self._working.note_use(rows[rows != NO_ROW])
        return rows

    def read(self, column: str, rows: Rows) -> npt.NDArray[np.generic]:
        return self._working.read(column, rows)

    def read_arrow(self, column: str, rows: Rows) -> pa.Array:
        return self._working.read_arrow(column, rows)

    def write(self, column: str, rows: Rows, values: npt.NDArray[np.generic]) -> None:
        self._working.write(column, rows, values)

    def write_arrow(self, column: str, rows: Rows, values: pa.Array) -> None:
        self._working.write_arrow(column, rows, values)

    def try_load(self, keys: pa.RecordBatch, values: Sequence[pa.Array]) -> bool:
        """Returns False: rows go through the working set, which bounds the memory."""
        return False

    def expect(self, rows: int) -> None:
        """Does nothing: rows that do not fit into memory go to disk."""

    def delete(self, rows: Rows) -> None:
        if len(rows):
            self._working.delete(rows)
            self._count -= len(rows)

    def select_at_most(self, key_column: str, bound: int) -> Rows:
        if self._on_disk_only and self._bounds.may_hold(key_column, bound):
            self._load_at_most(key_column, bound)
        return self._working.select_at_most(key_column, bound)

    def scan(self, after: ScanPosition | None, limit: int) -> tuple[Rows, ScanPosition | None]:
        """Scans memory by row, then the disk by key.

        A row is always in one of them. If it moves between them during the scan, the second part
        meets it.
        """
        if isinstance(after, bytes):
            return self._scan_disk(after, limit)
        rows, position = self._working.scan(after, limit)
        if position is None and self._on_disk_only:
            position = b""
        return rows, position

    def keys(self, rows: Rows) -> pa.RecordBatch:
        return self._working.keys(rows)

    def key_groups_of(self, keys: pa.RecordBatch) -> KeyGroups:
        return self._working.key_groups_of(keys)

    def settle(self) -> None:
        """Called between two calls of the operator; rows may leave memory, so numbers are void."""
        self._working.settle()
        if self._memory.share_of(self._working.state_bytes) < 1:
            self._make_room()

    def close(self) -> None:
        self._files.close()

    def freeze(self) -> FrozenState:
        """If all rows are in memory, reads them there without a flush to the database."""
        if self._on_disk_only:
            reader = self._files.reader()
            flush = self._cut(reader)
            batches = reader.batches(self._files.flushes, flush)
            release = partial(self._files.flushes.run_until, flush)
        else:
            batches, release = self._working.freeze(), None
        name, schema = self._descriptor.name, snapshot_schema(self._descriptor)
        return FrozenState(name, "table", schema, self._count, batches, release=release)

    def freeze_increment(
        self, checkpoint_id: CheckpointId, confirmed_id: CheckpointId
    ) -> FrozenState:
        if not self._count:
            self.log.on_written(checkpoint_id, None)
        cut = self._cut_database()
        increment = DatabaseIncrement(
            cut,
            self.log.base(confirmed_id) or {},
            lambda files: self.log.on_written(checkpoint_id, files),
        )
        return self._frozen(increment, cut)

    def freeze_native(self) -> FrozenState:
        cut = self._cut_database()
        return self._frozen(WholeDatabase(cut), cut)

    def adopt(self, files: SortedFiles, rows: int, reusable: Reusable) -> None:
        """Continues with a snapshot's database, which has `rows` rows, all of own key groups."""
        check(self._count == 0, "only an empty table takes a database over", rows=self._count)
        self._files.close()
        self._files = TableFiles(self._descriptor, files)
        self.log = IncrementLog(reusable)
        self._count = self._on_disk_only = rows
        self._bounds.on_unknown()
        self._filter.on_unknown()

    def _cut_database(self) -> CutDatabase:
        links, schema = LinkedFiles(self._scratch()), snapshot_schema(self._descriptor)
        flush = self._cut(links if self._count else None)  # no checkpoint stores an empty state
        return CutDatabase(self._files.flushes, flush, links, schema, len(self._descriptor.key))

    def _frozen(self, increment: Increment, cut: CutDatabase) -> FrozenState:
        name, schema = self._descriptor.name, snapshot_schema(self._descriptor)
        release = partial(cut.flushes.run_until, cut.flush)
        return FrozenState(
            name, "table", schema, self._count, iter(()), increment=increment, release=release
        )

    def _entered(self, keys: pa.RecordBatch) -> tuple[Rows, Rows]:
        """Returns the row of each key, and the distinct rows that are new."""
        rows, new = self._known_rows(keys)
        deleted = self._working.deleted_among(rows)
        if len(deleted):
            self._working.revive(deleted)
            self._count += len(deleted)
        return rows, np.concatenate([new, deleted])

    def _known_rows(self, keys: pa.RecordBatch) -> tuple[Rows, Rows]:
        """Returns the rows of the keys, deleted ones in memory included, and those that are new."""
        rows = self._working.rows_for(keys)
        fresh = self._working.fresh_among(rows)
        new = self._find_out(fresh) if len(fresh) else fresh
        self._working.note_use(rows)
        return rows, new

    def _find_out(self, fresh: Rows) -> Rows:
        """Loads stored values into rows that the working set has just made.

        Returns the rows whose keys are not in the database.
        """
        unknown = fresh
        if self._on_disk_only:
            keys = self._working.keys(fresh)
            maybe = self._maybe_on_disk(keys, np.arange(len(fresh)))
            keys = keys.take(pa.array(maybe))
            found, values = self._files.find(keys, self._working.key_groups_of(keys))
            at = maybe[found]
            self._load(fresh[at], values)
            unknown = np.delete(fresh, at)
        self._count += len(unknown)
        self._working.add_new(unknown)
        return unknown

    def _maybe_on_disk(self, keys: pa.RecordBatch, positions: Rows) -> Rows:
        """Returns the positions without those of keys that are certainly not on disk."""
        if not len(positions):
            return positions
        probed = keys.take(pa.array(positions))
        hashes = self._hash_keys(decoded(probed), tuple(self._descriptor.key.names))
        return positions[self._filter.may_hold(hashes)]

    def _find_on_disk(self, keys: pa.RecordBatch) -> Rows:
        """Looks up keys that are not in memory; loads those that are in the database."""
        at, values = self._files.find(keys, self._working.key_groups_of(keys))
        rows = np.full(keys.num_rows, NO_ROW, np.int64)
        rows[at] = self._working.rows_for(keys.take(pa.array(at)))
        distinct, first = np.unique(rows[at], return_index=True)
        self._load(distinct, values.take(pa.array(first)))
        return rows

    def _scan_disk(self, after: bytes, limit: int) -> tuple[Rows, ScanPosition | None]:
        keys, following = self._files.scan_keys(after, limit)
        if keys is None:
            return np.empty(0, np.int64), None
        rows = self.find(keys)
        return rows[rows != NO_ROW], following

    def _load(self, rows: Rows, values: pa.RecordBatch) -> None:
        if len(rows):
            self._working.add_stored(rows, values)
            self._on_disk_only -= len(rows)
            if not self._on_disk_only:
                self._filter.clear()

    def _load_at_most(self, key_column: str, bound: int) -> None:
        """Brings the due rows from disk into memory, and finds the next bound on the way."""
        search = Search(key_column, bound)
        for keys in self._files.all_keys():
            due = search.due_among(keys)
            if due.num_rows:
                self._known_rows(due)
        self._bounds.on_searched(search)

    def _cut(self, reader: CutReader | None) -> Flush:
        """Records the changes since the last cut; a later flush writes them."""
        files, changed = self._files, self._working.cut()
        flush = Flush(lambda: files.in_order(*changed()), reader)
        files.flushes.add(flush)
        self._working.on_cut(flush)
        return flush

    def _make_room(self) -> None:
        """Writes the changed rows, then evicts the least recently used ones."""
        flush = self._cut(None)
        self._files.flushes.run_until(flush)
        self._working.forget_deleted()
        share = self._memory.share_of(self._working.state_bytes)
        rows = self._working.least_used(min(1.0, share / 2))
        keys = self._working.keys(rows)
        self._bounds.on_evicted(keys)
        self._filter.add(self._hash_keys(keys, tuple(self._descriptor.key.names)))
        self._working.evict(rows)
        self._on_disk_only += len(rows)
