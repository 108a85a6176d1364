"""From the hash of a key to its row, a whole batch at a time.

Open addressing with linear probing over numpy arrays: each round resolves all keys that are still
open, so the cost per key is a few array operations and about two cache misses. Knows hashes only;
whether equal hashes mean equal keys is the table's business.
"""

import numpy as np
import numpy.typing as npt

from pipelines.domain.errors import check
from pipelines.state.backend import Rows
from pipelines.state.hashing import Hashes

INITIAL_CAPACITY = 1 << 10
MAX_LOAD = 0.5
"""Share of places in use before the index grows; linear probing degrades above it."""

EMPTY = np.uint64(0)
NO_ROW = -1


class KeyIndex:
    """Rows are given out by the caller; `NO_ROW` marks a hash that is known but has no row."""

    def __init__(self) -> None:
        self._allocate(INITIAL_CAPACITY)
        self._row_of_zero = NO_ROW  # the hash that stands for an empty place

    def find(self, hashes: Hashes) -> Rows:
        """Row of each hash, NO_ROW where there is none."""
        found = np.full(len(hashes), NO_ROW, dtype=np.int64)
        open_keys = np.arange(len(hashes))
        places = self._home(hashes)
        wanted = hashes
        while len(open_keys):
            there = self._hashes[places]
            hit = there == wanted
            found[open_keys[hit]] = self._rows[places[hit]]
            on = ~hit & (there != EMPTY)
            open_keys, wanted = open_keys[on], wanted[on]
            places = (places[on] + 1) & self._mask
        found[hashes == EMPTY] = self._row_of_zero  # an empty place looked like a hit
        return found

    def insert(self, hashes: Hashes, rows: Rows) -> None:
        """Give distinct hashes, none of which has a row, their rows."""
        zero = hashes == EMPTY
        if zero.any():
            self._row_of_zero = int(rows[zero][0])
            hashes, rows = hashes[~zero], rows[~zero]
        if self._used + len(hashes) > MAX_LOAD * len(self._hashes):
            self._rebuild(len(hashes))
        self._place(hashes, rows)

    def remove(self, hashes: Hashes) -> None:
        """The hashes lose their rows; their places are cleared when the index is rebuilt."""
        if (hashes == EMPTY).any():
            self._row_of_zero = NO_ROW
        wanted = hashes[hashes != EMPTY]
        places = self._home(wanted)
        while len(wanted):
            hit = self._hashes[places] == wanted
            self._rows[places[hit]] = NO_ROW
            check(bool((self._hashes[places] != EMPTY).all()), "only known keys are removed")
            wanted = wanted[~hit]
            places = (places[~hit] + 1) & self._mask

    def _place(self, hashes: Hashes, rows: Rows) -> None:
        places = self._home(hashes)
        while len(hashes):
            there = self._hashes[places]
            known = there == hashes
            self._rows[places[known]] = rows[known]
            free = there == EMPTY
            # Several keys may want one free place: the last to write it has won.
            self._hashes[places[free]] = hashes[free]
            won = free & (self._hashes[places] == hashes)
            self._rows[places[won]] = rows[won]
            self._used += int(won.sum())
            left = ~known & ~won
            hashes, rows = hashes[left], rows[left]
            places = (places[left] + 1) & self._mask

    def _rebuild(self, additional: int) -> None:
        """Drop hashes without a row, and grow until the load is half of what is allowed."""
        live = self._rows != NO_ROW
        hashes, rows = self._hashes[live], self._rows[live]
        capacity = INITIAL_CAPACITY
        while (len(hashes) + additional) * 2 > MAX_LOAD * capacity:
            capacity *= 2
        self._allocate(capacity)
        self._place(hashes, rows)

    def _allocate(self, capacity: int) -> None:
        self._hashes: Hashes = np.zeros(capacity, dtype=np.uint64)
        self._rows: Rows = np.full(capacity, NO_ROW, dtype=np.int64)
        self._mask = np.int64(capacity - 1)
        self._shift = np.uint64(64 - (capacity.bit_length() - 1))
        self._used = 0

    def _home(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """By the upper bits: the lower ones decide the key group and are alike in a subtask."""
        return (hashes >> self._shift).view(np.int64)
