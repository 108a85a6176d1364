"""Columns of a table that can be frozen without copying them.

A cut marks every segment of rows as pending. Whoever writes to a pending segment first saves its
content for the cut; the reader of the cut takes the saved content, or reads the live segment under
the cut's lock. So the cut itself costs the same for ten rows and for ten million.

Source: copy-on-write of pages as after fork(2), done per segment of rows.
"""

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.state.backend import Rows

SEGMENT_BITS = 15
SEGMENT_ROWS = 1 << SEGMENT_BITS
INITIAL_ROWS = 1 << 10

Column = npt.NDArray[Any]
"""One value per row; its element type is that of the Arrow field it stands for."""

ColumnType = np.dtype[Any]
Columns = dict[str, Column]


class ColumnsCut:
    """The columns as they were. `segments` may be consumed once, by any one thread."""

    def __init__(self, columns: Columns, length: int) -> None:
        self._columns = columns
        self._length = length
        self._lock = threading.Lock()
        self._saved: dict[int, Columns] = {}
        self._pending = np.ones(-(-length // SEGMENT_ROWS), dtype=np.bool_)

    def segments(self) -> Iterator[Columns]:
        for segment in range(len(self._pending)):
            with self._lock:
                saved = self._saved.pop(segment, None)
                yielded = self._copy(segment) if saved is None else saved
                self._pending[segment] = False
            yield yielded

    def before_write(self, segments: npt.NDArray[np.int64]) -> None:
        """Called by the writer, with distinct segment numbers, before it writes to them."""
        known = segments[segments < len(self._pending)]
        for segment in known[self._pending[known]].tolist():
            with self._lock:
                if self._pending[segment]:
                    self._saved[segment] = self._copy(segment)
                    self._pending[segment] = False

    def _copy(self, segment: int) -> Columns:
        first = segment << SEGMENT_BITS
        rows = slice(first, min(first + SEGMENT_ROWS, self._length))
        return {name: column[rows].copy() for name, column in self._columns.items()}


class ColumnStore:
    """Columns of equal length, written by one thread."""

    def __init__(self, types: dict[str, ColumnType]) -> None:
        self._columns: Columns = {n: np.zeros(INITIAL_ROWS, dtype=t) for n, t in types.items()}
        self._capacity = INITIAL_ROWS
        # Weak: a cut that nobody will read any more must not cost copies. A list and not a set:
        # only this thread may change it, while another one drops the last reference to a cut.
        self._cuts: list[weakref.ref[ColumnsCut]] = []

    def __getitem__(self, name: str) -> Column:
        """The live column, for reading; writes go through `write`."""
        return self._columns[name]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self._columns.values())

    def ensure(self, rows: int) -> None:
        """Room for `rows` rows. Cuts keep the old arrays, which nobody writes to any more."""
        if rows <= self._capacity:
            return
        while self._capacity < rows:
            self._capacity *= 2
        for name, column in self._columns.items():
            grown = np.zeros(self._capacity, dtype=column.dtype)
            grown[: len(column)] = column
            self._columns[name] = grown
        self._cuts.clear()

    def write(self, rows: Rows, values: Columns) -> None:
        self._save(rows)
        for name, column in values.items():
            self._columns[name][rows] = column

    def cut(self, length: int) -> ColumnsCut:
        cut = ColumnsCut(dict(self._columns), length)
        self._cuts = [known for known in self._cuts if known() is not None] + [weakref.ref(cut)]
        return cut

    def _save(self, rows: Rows) -> None:
        cuts = [cut for reference in self._cuts if (cut := reference()) is not None]
        if not cuts:
            self._cuts.clear()
            return
        touched = np.zeros((self._capacity >> SEGMENT_BITS) + 1, dtype=np.bool_)
        touched[rows >> SEGMENT_BITS] = True
        segments = np.flatnonzero(touched)
        for cut in cuts:
            cut.before_write(segments)
