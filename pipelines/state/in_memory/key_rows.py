"""Maps each key of a table to its row, by an index of hashes and a dict of colliding keys.

`KeyRows` owns the keys, their hashes and key groups, and the row numbers. The table owns the other
contents of a row; it is notified of each fresh row.

The index is open addressing over numpy arrays. Every key of a batch probes at once; each further
round looks only at the keys that are still unresolved. The index knows only hashes and rows; its
caller decides whether equal hashes mean equal keys. Numbers of deleted rows are reused, newest
first.

A key whose 64-bit hash belongs to another, earlier key is rare, so a dict is enough for such keys:
of 37 tables of a billion keys, expect one table with one such pair. Merging two keys even once
would give a wrong answer. (Flink's `CopyOnWriteStateMap` chains entries of equal hash instead.)

Source: Knuth, TAOCP 3, 6.4 (open addressing); probing by triangular numbers visits every slot of a
table whose size is a power of two.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.arrow_types import decoded
from pipelines.state.backend import Rows, TableDescriptor
from pipelines.state.hashing import Hashes, KeyGroups, is_bijective, is_bytes_like, key_groups
from pipelines.state.in_memory.columns import Column
from pipelines.state.in_memory.key_columns import FrozenArrays, Mask, NumberKeys, key_column

ABSENT = -1
_EMPTY = -1
_DELETED = -2
INITIAL_CAPACITY = 1024
_LOAD_MAX = 0.6  # above it, probing takes ever more rounds
_DELETED_MAX = 128  # in excess of the live ones: turnover would make probes long
_LOAD_REBUILT = 0.5  # well below, so that deletions do not cause a rebuild on every batch

_LOAD_MAX_LEAVING = 0.8  # of a table whose keys are moving out
MOVED_SLOTS_PER_HASH = 8  # with 2, the next table would be full before this one is empty
MOVED_SLOTS_MIN = 1 << 14  # per look-up; this takes some tenths of a millisecond
MOVED_SLOTS_MAX = 1 << 18  # per step: a larger step would work in memory instead of the caches


@dataclass(frozen=True, slots=True)
class Distinct:
    """Distinct hashes, in order of first appearance.

    `first` has the position of each first appearance; `code` maps every original position to its
    hash here.
    """

    hashes: Hashes
    first: Rows
    code: Rows

    @classmethod
    def of(cls, hashes: Hashes) -> "Distinct":
        encoded = pa.array(hashes).dictionary_encode()
        code = encoded.indices.to_numpy().astype(np.int64)
        distinct = encoded.dictionary.to_numpy()
        first = np.empty(len(distinct), np.int64)
        # Written in reverse, so that the first appearance stays.
        first[code[::-1]] = np.arange(len(code) - 1, -1, -1)
        return cls(distinct, first, code)


def has_repeats(hashes: Hashes) -> bool:
    """True if a hash repeats. Several times as fast as `Distinct`, which also finds positions."""
    ordered = np.sort(hashes)
    return bool((ordered[1:] == ordered[:-1]).any())


class KeyIndex:
    """A map from 64-bit hash to row, whose keys move into a larger table a few at a time.

    Moving all keys of a large table at once would stop the subtask, and a barrier with it: 5
    million keys take a second. So the old table stays beside the new one while each look-up empties
    some more of its slots, in order. A new key goes to the table where its neighbours are. So the
    new table's memory is also touched in order, and not all at once by the first batch.

    Source: the incremental rehashing of Redis (`dict.c`), which ignores neighbours.
    """

    def __init__(self) -> None:
        self._slots = _Slots(INITIAL_CAPACITY)
        self._old: _Slots | None = None
        self._emptied = 0  # slots of the old table, from its first one on

    def __len__(self) -> int:
        return self._slots.live + self._old_live

    @property
    def is_moving(self) -> bool:
        return self._old is not None

    @property
    def capacity(self) -> int:
        """Slots of the table that new keys move to."""
        return self._slots.capacity

    def find(self, hashes: Hashes) -> Rows:
        """The row of each hash, or ABSENT."""
        self._move(min(MOVED_SLOTS_MAX, max(MOVED_SLOTS_MIN, MOVED_SLOTS_PER_HASH * len(hashes))))
        found = self._slots.find(hashes)
        if self._old is not None:
            missing = np.flatnonzero(found == ABSENT)
            found[missing] = self._old.find(hashes[missing])
        return found

    def insert(self, hashes: Hashes, rows: Rows) -> None:
        """Adds hashes that are distinct and absent, with rows that no other hash has."""
        self.reserve(len(hashes))
        if self._old is not None:
            stays = self._old.has_neighbours(hashes, self._emptied)
            self._old.insert(hashes[stays], rows[stays])
            hashes, rows = hashes[~stays], rows[~stays]
        self._slots.insert(hashes, rows)

    def delete(self, hashes: Hashes) -> None:
        """Removes hashes that are distinct and present."""
        for slots, own in self._by_table(hashes):
            slots.delete(hashes[own])

    def replace(self, hashes: Hashes, rows: Rows) -> None:
        """Changes the rows of hashes that are distinct and present."""
        for slots, own in self._by_table(hashes):
            slots.replace(hashes[own], rows[own])

    def reserve(self, added: int) -> None:
        """Makes room for `added` more hashes."""
        slots = self._slots
        has_room = slots.used + self._old_live + added <= slots.capacity * _LOAD_MAX
        if has_room and slots.used - slots.live <= len(self) + _DELETED_MAX:
            return
        while self._old is not None:
            self._move(MOVED_SLOTS_MAX)
        wanted = int((len(self) + added) / _LOAD_REBUILT)
        self._old, self._emptied = slots, 0
        self._slots = _Slots(max(INITIAL_CAPACITY, 1 << wanted.bit_length()))
        self._move(MOVED_SLOTS_MIN)

    @property
    def _old_live(self) -> int:
        return 0 if self._old is None else self._old.live

    def _move(self, count: int) -> None:
        """Empties `count` more slots of the old table."""
        if self._old is None:
            return
        self._slots.insert(*self._old.take_out(slice(self._emptied, self._emptied + count)))
        self._emptied += count
        if self._emptied >= self._old.capacity:
            if self._old.live:  # probes of new keys wrapped around the end
                self._slots.insert(*self._old.take_out(slice(None)))
            self._old = None

    def _by_table(self, hashes: Hashes) -> list[tuple["_Slots", Mask]]:
        """Returns each table with flags for the hashes that it contains."""
        if self._old is None:
            return [(self._slots, np.ones(len(hashes), np.bool_))]
        is_old = self._old.find(hashes) != ABSENT
        return [(self._slots, ~is_old), (self._old, is_old)]


class _Slots:
    """Open addressing in a fixed number of slots; the caller makes sure that some stay empty.

    The upper bits of a hash choose its slot, because the lower bits decide the key group and vary
    less among the keys of one subtask. So neighbours here are also neighbours in a larger table.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.live = 0
        self.used = 0  # live and deleted slots, which a probe has to pass
        self._mask = np.int64(capacity - 1)
        self._shift = np.uint64(64 - (capacity.bit_length() - 1))
        self._hashes = np.zeros(capacity, np.uint64)
        # The complements of the rows, so that fresh memory, which is zero, counts as empty.
        self._rows = np.zeros(capacity, np.int64)

    def find(self, hashes: Hashes) -> Rows:
        """The row of each hash, or ABSENT."""
        slots = self._first_slots(hashes)
        found = ~self._rows.take(slots)
        resolved = (self._hashes.take(slots) == hashes) & (found >= 0)
        resolved |= found == _EMPTY
        pending = np.flatnonzero(~resolved)
        if len(pending):
            found[pending] = self._find_further(hashes[pending], slots[pending])
        return found

    def insert(self, hashes: Hashes, rows: Rows) -> None:
        """Puts each hash, distinct and absent, into the first never-used slot on its way.

        Several may claim one slot in the same round. The last write stays; the others then read a
        row that is not their own, and continue.
        """
        self.live += len(hashes)
        self.used += len(hashes)
        check(self.used < self.capacity, "a slot stays empty", capacity=self.capacity)
        rows = ~rows
        slots = self._first_slots(hashes)
        step = 0
        while len(rows):
            free = self._rows.take(slots) == ~_EMPTY
            claimed = slots[free]
            self._rows[claimed] = rows[free]
            won = free.copy()
            won[free] = self._rows.take(claimed) == rows[free]
            self._hashes[slots[won]] = hashes[won]
            lost = ~won
            step += 1
            slots = (slots[lost] + step) & self._mask
            hashes, rows = hashes[lost], rows[lost]

    def delete(self, hashes: Hashes) -> None:
        self._rows[self._slots_of(hashes)] = ~_DELETED
        self.live -= len(hashes)

    def replace(self, hashes: Hashes, rows: Rows) -> None:
        self._rows[self._slots_of(hashes)] = ~rows

    def has_neighbours(self, hashes: Hashes, first: int) -> Mask:
        """Flags the hashes whose probes begin at slot `first` or after it, if all hashes fit.

        Slots near the end do not count, because probes that begin there might wrap around.
        """
        slots = self._first_slots(hashes)
        flags = (slots >= first) & (slots < self.capacity - self.capacity // 64)
        return flags & (self.used + len(hashes) <= self.capacity * _LOAD_MAX_LEAVING)

    def take_out(self, part: slice) -> tuple[Hashes, Rows]:
        """Empties these slots; returns their hashes and rows."""
        rows = ~self._rows[part]
        held = np.flatnonzero(rows >= 0)
        self._rows[part][held] = ~_DELETED
        self.live -= len(held)
        return self._hashes[part][held], rows[held]

    def _first_slots(self, hashes: Hashes) -> Rows:
        return (hashes >> self._shift).view(np.int64)

    def _find_further(self, hashes: Hashes, slots: Rows) -> Rows:
        result = np.full(len(hashes), ABSENT, np.int64)
        pending = np.arange(len(hashes))
        for step in range(1, self.capacity + 1):
            slots = (slots + step) & self._mask
            found = ~self._rows.take(slots)
            hit = (self._hashes.take(slots) == hashes) & (found >= 0)
            result[pending[hit]] = found[hit]
            unresolved = ~hit & (found != _EMPTY)
            pending, hashes, slots = pending[unresolved], hashes[unresolved], slots[unresolved]
            if not len(pending):
                return result
        check(False, "a probe ends at an empty slot", capacity=self.capacity, used=self.used)
        return result

    def _slots_of(self, hashes: Hashes) -> Rows:
        """Returns the slot of each of these hashes; all must be present."""
        result = self._first_slots(hashes)
        pending = np.arange(len(hashes))
        slots = result
        for step in range(1, self.capacity + 1):
            wanted = hashes[pending]
            rows = ~self._rows.take(slots)
            hit = (self._hashes.take(slots) == wanted) & (rows >= 0)
            check(not (rows == _EMPTY).any(), "a hash that is removed or replaced is present")
            result[pending[hit]] = slots[hit]
            pending, slots = pending[~hit], slots[~hit]
            if not len(pending):
                return result
            slots = (slots + step) & self._mask
        check(False, "a probe ends at its hash", capacity=self.capacity, used=self.used)
        return result


Key = tuple[Hashable, ...]


class Collisions:
    """The second and further keys of a hash; the first one is in the table's index."""

    def __init__(self) -> None:
        self._by_hash: dict[int, dict[Key, int]] = {}
        self._owner: dict[int, tuple[int, Key]] = {}  # by row

    def __len__(self) -> int:
        return len(self._owner)

    def row_of(self, key_hash: int, key: Key) -> int | None:
        return self._by_hash.get(key_hash, {}).get(key)

    def add(self, key_hash: int, key: Key, row: int) -> None:
        self._by_hash.setdefault(key_hash, {})[key] = row
        self._owner[row] = (key_hash, key)

    def remove(self, row: int) -> None:
        key_hash, key = self._owner.pop(row)
        del self._by_hash[key_hash][key]
        if not self._by_hash[key_hash]:
            del self._by_hash[key_hash]

    def holds(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Flags which of these rows are here rather than in the index."""
        return np.isin(rows, np.fromiter(self._owner, np.int64, len(self._owner)))

    def pop_successor(self, key_hash: int) -> int:
        """Removes and returns a row with this hash, for the index; ABSENT if none is left."""
        others = self._by_hash.get(key_hash)
        if not others:
            return ABSENT
        row = next(iter(others.values()))
        self.remove(row)
        return row


class RowNumbers:
    def __init__(self) -> None:
        self.length = 0  # all rows ever handed out are below this
        self._free = np.empty(0, np.int64)
        self._free_count = 0

    def __len__(self) -> int:
        """The number of rows in use."""
        return self.length - self._free_count

    def allocate(self, count: int) -> Rows:
        reused = min(count, self._free_count)
        self._free_count -= reused
        old = self._free[self._free_count : self._free_count + reused]
        new = np.arange(self.length, self.length + count - reused)
        self.length += len(new)
        return np.concatenate([old, new])

    def release(self, rows: Rows) -> None:
        needed = self._free_count + len(rows)
        if needed > len(self._free):
            larger = np.empty(max(1024, 2 * needed), np.int64)
            larger[: self._free_count] = self._free[: self._free_count]
            self._free = larger
        self._free[self._free_count : needed] = rows
        self._free_count = needed


class HashKeys(Protocol):
    def __call__(
        self, batch: pa.RecordBatch, columns: Sequence[str], after: Hashes | None = None
    ) -> Hashes:
        """Works like `hashing.key_hashes`."""
        ...


class KeyRows:
    """Guarantee: one row per distinct key. All keys must belong to its own key groups."""

    def __init__(
        self,
        descriptor: TableDescriptor,
        own_groups: KeyGroupRange,
        max_parallelism: int,
        hash_keys: HashKeys,
        on_added: Callable[[Rows], None],
        lock: threading.Lock,
    ) -> None:
        self._descriptor = descriptor
        self._own_groups = own_groups
        self._max_parallelism = max_parallelism
        self._hash_keys = hash_keys
        self._on_added = on_added
        self._types = [(f.name, f.type) for f in descriptor.key]
        self._is_text = len(self._types) == 1 and is_bytes_like(self._types[0][1])
        self._is_exact = is_bijective(descriptor.key)  # up to the first null
        self._numbers = RowNumbers()
        self._index = KeyIndex()
        self._collisions = Collisions()
        self._hashes = Column(np.uint64, 0, lock)
        self.groups = Column(np.uint16, 0, lock)
        self.live = Column(np.bool_, False, lock)
        self.columns = {f.name: key_column(f.type, lock) for f in descriptor.key}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def length(self) -> int:
        """All row numbers are below this."""
        return self._numbers.length

    @property
    def row_bytes(self) -> int:
        """Bytes per row, not counting texts."""
        own = [self._hashes, self.groups, self.live]
        return sum(column.dtype.itemsize for column in own) + 8 * len(self.columns)

    @property
    def heap_bytes(self) -> int:
        return sum(column.heap_bytes for column in self.columns.values())

    def rows_for(self, keys: pa.RecordBatch) -> Rows:
        """Returns the row of each key; unseen keys get fresh rows."""
        return self._look_up(keys, lambda keys: self._enter(keys)[0])

    def enter(self, keys: pa.RecordBatch, group_hashes: Hashes | None = None) -> tuple[Rows, Mask]:
        """Like `rows_for`; also flags each unseen key, at its first position if it repeats."""
        if not keys.num_rows:
            return np.empty(0, np.int64), np.empty(0, np.bool_)
        return self._enter(self._declared(keys), group_hashes)

    def group_hashes(self, rows: pa.RecordBatch) -> Hashes:
        return self._hash_keys(rows, self._descriptor.key_group_by)

    def try_load(self, keys: pa.RecordBatch) -> Rows | None:
        """Makes fresh rows for a snapshot's keys; the caller fills in their values at once.

        Returns None, and changes nothing, if some keys exist already or share a hash.
        """
        if self._is_exact and keys.column(0).null_count:
            return None
        hashes = self._hash_keys(keys, self._descriptor.key.names)
        if has_repeats(hashes) or (self._index.find(hashes) != ABSENT).any():
            return None
        rows = self._allocate(keys, hashes)
        self._index.insert(hashes, rows)
        return rows

    def expect(self, count: int) -> None:
        """Makes room for `count` more rows."""
        self._index.reserve(count)
        for column in (self._hashes, self.groups, self.live):
            column.reserve(self.length + count)
        for key in self.columns.values():
            key.reserve(self.length + count)

    def find(self, keys: pa.RecordBatch) -> Rows:
        """Returns the row of each key, or ABSENT if there is none."""
        return self._look_up(keys, self._find)

    def delete(self, rows: Rows) -> None:
        if not len(rows):
            return
        check(bool(self.live.read(rows).all()), "only live rows are deleted")
        self._forget_hashes(rows)
        self.live.write(rows, False)
        self._numbers.release(rows)

    def select_at_most(self, key_column: str, bound: int) -> Rows:
        column = self.columns[key_column]
        check(isinstance(column, NumberKeys), "only numbers have a bound", column=key_column)
        return cast("NumberKeys", column).select_at_most(bound, self.live_mask)

    def keys(self, rows: Rows) -> pa.RecordBatch:
        arrays = [column.get(rows) for column in self.columns.values()]
        return pa.RecordBatch.from_arrays(arrays, schema=self._descriptor.key)

    def key_groups_of(self, keys: pa.RecordBatch) -> KeyGroups:
        """Returns the key group of each row, which the stream's key decides."""
        return key_groups(self.group_hashes(keys), self._max_parallelism)

    def live_mask(self) -> npt.NDArray[np.bool_]:
        return self.live.values[: self.length].astype(np.bool_, copy=False)

    def freeze(self, length: int) -> list[FrozenArrays]:
        return [column.freeze(length) for column in self.columns.values()]

    def _look_up(self, keys: pa.RecordBatch, of: Callable[[pa.RecordBatch], Rows]) -> Rows:
        """Looks each distinct text up only once."""
        keys = self._declared(keys)
        if not keys.num_rows:
            return np.empty(0, np.int64)
        if not self._is_text:
            return of(keys)
        encoded = keys.column(0).dictionary_encode(null_encoding="encode")
        distinct = pa.RecordBatch.from_arrays([encoded.dictionary], schema=self._descriptor.key)
        rows: Rows = of(distinct)[encoded.indices.to_numpy()]
        return rows

    def _declared(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        if keys.schema.equals(self._descriptor.key):
            return keys
        keys = decoded(keys)
        given = [(f.name, f.type) for f in keys.schema]
        check(given == self._types, "keys have the declared columns", keys=given)
        return keys

    def _find(self, keys: pa.RecordBatch) -> Rows:
        hashes = self._hash_keys(keys, self._descriptor.key.names)
        rows = self._index.find(hashes)
        if self._is_exact and not keys.column(0).null_count:
            return rows
        found = np.flatnonzero(rows != ABSENT)
        picked = keys.take(pa.array(found))
        strangers = found[~self._same(picked, rows[found])]
        for at, key in zip(strangers.tolist(), self._identities(keys, strangers), strict=True):
            row = self._collisions.row_of(int(hashes[at]), key)
            rows[at] = ABSENT if row is None else row
        return rows

    def _enter(self, keys: pa.RecordBatch, group_hashes: Hashes | None = None) -> tuple[Rows, Mask]:
        """Returns the row of each key, and flags for the fresh ones."""
        hashes = self._hashes_of(keys, group_hashes)
        if self._is_exact and keys.column(0).null_count:
            self._is_exact = False  # a number may have the hash of null
        rows = self._index.find(hashes)
        is_new = np.zeros(len(rows), np.bool_)
        missing = np.flatnonzero(rows == ABSENT)
        if len(missing):
            distinct = Distinct.of(hashes[missing])
            first = missing[distinct.first]
            of_groups = None if group_hashes is None else group_hashes[first]
            added = self._add(keys.take(pa.array(first)), distinct.hashes, of_groups)
            self._index.insert(distinct.hashes, added)
            rows[missing] = added.take(distinct.code)
            is_new[first] = True
        if not self._is_exact:
            self._separate(keys, hashes, rows, is_new)
        return rows, is_new

    def _hashes_of(self, keys: pa.RecordBatch, group_hashes: Hashes | None) -> Hashes:
        names, group_by = self._descriptor.key.names, self._descriptor.key_group_by
        if group_hashes is None or tuple(names[: len(group_by)]) != group_by:
            return self._hash_keys(keys, names)
        return self._hash_keys(keys, names[len(group_by) :], group_hashes)

    def _add(self, keys: pa.RecordBatch, hashes: Hashes, group_hashes: Hashes | None) -> Rows:
        """Makes fresh rows for distinct keys."""
        for key in self.columns.values():
            key.tidy(self.live_mask)
        rows = self._allocate(keys, hashes, group_hashes)
        self._on_added(rows)
        return rows

    def _allocate(
        self, keys: pa.RecordBatch, hashes: Hashes, group_hashes: Hashes | None = None
    ) -> Rows:
        if self._descriptor.key_group_by == tuple(self._descriptor.key.names):
            group_hashes = hashes
        hashes_of_group = self.group_hashes(keys) if group_hashes is None else group_hashes
        groups = key_groups(hashes_of_group, self._max_parallelism)
        self._check_own(groups)
        rows = self._numbers.allocate(len(hashes))
        for key in self.columns.values():
            key.reserve(self.length)
        for column in (self._hashes, self.groups, self.live):
            column.reserve(self.length)
        self._hashes.write(rows, hashes)
        self.groups.write(rows, groups)
        self.live.write(rows, True)
        for (name, _), array in zip(self._types, keys.columns, strict=True):
            self.columns[name].put(rows, array)
        return rows

    def _separate(self, keys: pa.RecordBatch, hashes: Hashes, rows: Rows, is_new: Mask) -> None:
        """Gives its own row to each key that only shares its hash with the row it found."""
        known = np.flatnonzero(~is_new)
        strangers = known[~self._same(keys.take(pa.array(known)), rows[known])]
        for at, key in zip(strangers.tolist(), self._identities(keys, strangers), strict=True):
            key_hash = int(hashes[at])
            row = self._collisions.row_of(key_hash, key)
            if row is None:
                row = int(self._add(keys.slice(at, 1), hashes[at : at + 1], None)[0])
                self._collisions.add(key_hash, key, row)
                is_new[at] = True
            rows[at] = row

    def _same(self, keys: pa.RecordBatch, rows: Rows) -> npt.NDArray[np.bool_]:
        """True where a row has the key itself, not another one with the same hash."""
        same = np.ones(len(rows), np.bool_)
        for (name, _), array in zip(self._types, keys.columns, strict=True):
            same &= self.columns[name].matches(rows, array)
        return same

    def _identities(self, keys: pa.RecordBatch, at: Rows) -> list[tuple[Hashable, ...]]:
        if not len(at):
            return []
        chosen = keys.take(pa.array(at))
        named = zip(self._types, chosen.columns, strict=True)
        return list(zip(*(self.columns[n].identities(a) for (n, _), a in named), strict=True))

    def _forget_hashes(self, rows: Rows) -> None:
        """Takes rows out of the index; for each, a key that collided with it moves up."""
        if len(self._collisions):
            collided = self._collisions.holds(rows)
            for row in rows[collided].tolist():
                self._collisions.remove(row)
            rows = rows[~collided]
        hashes = self._hashes.read(rows).astype(np.uint64, copy=False)
        successors = np.full(len(rows), ABSENT, np.int64)
        if len(self._collisions):
            successors[:] = [self._collisions.pop_successor(h) for h in hashes.tolist()]
        has_successor = successors != ABSENT
        self._index.replace(hashes[has_successor], successors[has_successor])
        self._index.delete(hashes[~has_successor])

    def _check_own(self, groups: KeyGroups) -> None:
        own = self._own_groups
        holds = own.first <= int(groups.min()) and int(groups.max()) <= own.last
        check(holds, "a key reaches the owner of its group", table=self._descriptor.name, own=own)
