"""Maps hashes to rows: an open-addressing index over numpy arrays, a whole batch per call.

Every key of a batch probes at once; each further round looks only at the keys that are still
unresolved. The index knows hashes and rows; its caller decides whether equal hashes mean equal
keys. Numbers of deleted rows are reused, newest first.

A key whose 64-bit hash belongs to another, earlier key is rare, so a dict is enough for such keys:
in a table of a billion keys, expect one pair in about one of 37 tables. Merging two keys even once
would give a wrong answer.

Source: Knuth, TAOCP 3, 6.4 (open addressing); probing by triangular numbers visits every slot of a
table whose size is a power of two.
"""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.domain.errors import check
from pipelines.state.hashing import Hashes

Rows = npt.NDArray[np.int64]

ABSENT = -1
_EMPTY = -1
_DELETED = -2
INITIAL_CAPACITY = 1024
_LOAD_MAX = 0.6  # above it, probing takes ever more rounds
_DELETED_MAX = 128  # beyond as many as are live: turnover would make probes long
_LOAD_REBUILT = 0.5  # well below, so that deletions do not cause a rebuild on every batch


@dataclass(frozen=True, slots=True)
class Distinct:
    """The distinct hashes among some, in order of first appearance.

    `first` is where each appeared first; `code` maps every original position to its hash here.
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
    """Several times as fast as `Distinct`, which also finds the positions."""
    ordered = np.sort(hashes)
    return bool((ordered[1:] == ordered[:-1]).any())


class KeyIndex:
    """A map from 64-bit hash to row.

    The upper bits choose the slot: the lower ones decide the key group, so they vary less among the
    keys of one subtask.
    """

    def __init__(self) -> None:
        self._live = 0
        self._allocate(INITIAL_CAPACITY)

    def __len__(self) -> int:
        return self._live

    @property
    def size_bytes(self) -> int:
        return int(self._hashes.nbytes + self._rows.nbytes)

    def find(self, hashes: Hashes) -> Rows:
        """The row of each hash, or ABSENT."""
        slots = self._first_slots(hashes)
        found = self._rows.take(slots)
        resolved = (self._hashes.take(slots) == hashes) & (found >= 0)
        resolved |= found == _EMPTY
        pending = np.flatnonzero(~resolved)
        if len(pending):
            found[pending] = self._find_further(hashes[pending], slots[pending])
        return found

    def insert(self, hashes: Hashes, rows: Rows) -> None:
        """Add hashes that are distinct and absent."""
        self.reserve(len(hashes))
        self._place(hashes, rows)
        self._live += len(hashes)
        self._used += len(hashes)

    def delete(self, hashes: Hashes) -> None:
        """Remove hashes that are distinct and present."""
        slots = self._slots_of(hashes)
        self._rows[slots] = _DELETED
        self._live -= len(hashes)

    def replace(self, hashes: Hashes, rows: Rows) -> None:
        """Change the rows of hashes that are distinct and present."""
        self._rows[self._slots_of(hashes)] = rows

    def _allocate(self, capacity: int) -> None:
        self._capacity = capacity
        self._mask = np.int64(capacity - 1)
        self._shift = np.uint64(64 - (capacity.bit_length() - 1))
        self._hashes = np.zeros(capacity, np.uint64)
        self._rows = np.full(capacity, _EMPTY, np.int64)
        self._used = 0  # live and deleted: what a probe has to pass

    def _first_slots(self, hashes: Hashes) -> Rows:
        return (hashes >> self._shift).view(np.int64)

    def _find_further(self, hashes: Hashes, slots: Rows) -> Rows:
        result = np.full(len(hashes), ABSENT, np.int64)
        pending = np.arange(len(hashes))
        for step in range(1, self._capacity + 1):
            slots = (slots + step) & self._mask
            found = self._rows.take(slots)
            hit = (self._hashes.take(slots) == hashes) & (found >= 0)
            result[pending[hit]] = found[hit]
            unresolved = ~hit & (found != _EMPTY)
            pending, hashes, slots = pending[unresolved], hashes[unresolved], slots[unresolved]
            if not len(pending):
                return result
        check(False, "a probe ends at an empty slot", capacity=self._capacity, used=self._used)
        return result

    def _slots_of(self, hashes: Hashes) -> Rows:
        """The slot of each of these hashes; all must be present."""
        result = self._first_slots(hashes)
        pending = np.arange(len(hashes))
        slots = result
        for step in range(1, self._capacity + 1):
            wanted = hashes[pending]
            rows = self._rows.take(slots)
            hit = (self._hashes.take(slots) == wanted) & (rows >= 0)
            check(not (rows == _EMPTY).any(), "a hash that is removed or replaced is present")
            result[pending[hit]] = slots[hit]
            pending, slots = pending[~hit], slots[~hit]
            if not len(pending):
                return result
            slots = (slots + step) & self._mask
        check(False, "a probe ends at its hash", capacity=self._capacity, used=self._used)
        return result

    def reserve(self, added: int) -> None:
        """Make room for so many more."""
        has_room = self._used + added <= self._capacity * _LOAD_MAX
        if has_room and self._used - self._live <= self._live + _DELETED_MAX:
            return
        occupied = np.flatnonzero(self._rows >= 0)
        hashes, rows = self._hashes[occupied], self._rows[occupied]
        wanted = int((len(rows) + added) / _LOAD_REBUILT)
        self._allocate(max(INITIAL_CAPACITY, 1 << wanted.bit_length()))
        self._place(hashes, rows)
        self._used = len(rows)

    def _place(self, hashes: Hashes, rows: Rows) -> None:
        """Put each hash into the first never-used slot that its probe finds.

        Several may claim one slot in the same round: the last write stays, and the others, which
        read another row than their own, go on.
        """
        slots = self._first_slots(hashes)
        step = 0
        while len(rows):
            free = self._rows.take(slots) == _EMPTY
            claimed = slots[free]
            self._rows[claimed] = rows[free]
            won = free.copy()
            won[free] = self._rows.take(claimed) == rows[free]
            self._hashes[slots[won]] = hashes[won]
            lost = ~won
            step += 1
            slots = (slots[lost] + step) & self._mask
            hashes, rows = hashes[lost], rows[lost]


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
        """A row with this hash, which moves to the index; ABSENT if none is left."""
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
        """Rows in use."""
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
