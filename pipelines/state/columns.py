"""One fixed-width column that can be frozen without copying it.

A frozen column starts out sharing the live array, which is divided into segments. Before the owner
first overwrites a segment that a reader still needs, it saves the segment as it was (the
pre-image). The reader takes the pre-image if there is one, and else copies the live segment; a lock
makes the check and the copy one step.

One thread writes (the subtask's); any other thread may read the frozen columns.
"""

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.domain.errors import check

Values = npt.NDArray[Any]
"""One value per row; the element type is that of the column."""
Rows = npt.NDArray[np.int64]

SEGMENT_BITS = 16
SEGMENT_ROWS = 1 << SEGMENT_BITS
INITIAL_ROWS = 1 << 10


class FrozenColumn:
    """A column as it was at the cut. One thread at most may take each segment, at most once."""

    def __init__(self, values: Values, length: int, lock: threading.Lock) -> None:
        self._values = values
        self._length = length
        self._lock = lock
        self._preimages: dict[int, Values] = {}
        self.shared = np.ones(segment_count(length), np.bool_)  # segments only the live array has

    def take(self, segment: int) -> Values:
        """The rows of one segment, as they were; the caller owns them."""
        first = segment << SEGMENT_BITS
        with self._lock:
            check(
                bool(self.shared[segment]) or segment in self._preimages, "a segment is taken once"
            )
            if not self.shared[segment]:
                return self._preimages.pop(segment)
            values = self._values[first : min(first + SEGMENT_ROWS, self._length)].copy()
            # Only now: the owner checks `shared` without the lock, and then writes.
            self.shared[segment] = False
            return values

    def keep(self, segment: int, preimage: Values) -> None:
        """The owner is about to overwrite `segment`. The lock is held."""
        self.shared[segment] = False
        self._preimages[segment] = preimage[: self._length - (segment << SEGMENT_BITS)]


class Column:
    """Values by row number. `lock` may be shared by the columns of one table."""

    def __init__(
        self, dtype: npt.DTypeLike, fill: int | float | bool, lock: threading.Lock
    ) -> None:
        self._fill = fill
        self._lock = lock
        self._values: Values = np.empty(0, dtype)
        self._frozen: list[weakref.ref[FrozenColumn]] = []

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._values.dtype

    @property
    def values(self) -> Values:
        """The live array, to be read only; longer than the rows in use."""
        return self._values

    @property
    def reader_count(self) -> int:
        """Frozen columns that still share a segment with this one."""
        return len(list(self._readers()))

    def read(self, rows: Rows) -> Values:
        return self._values.take(rows)

    def write(self, rows: Rows, values: Values | int | float | bool) -> None:
        if self._frozen:
            self._save_preimages(rows)
        self._values[rows] = values

    def reset(self, rows: Rows) -> None:
        self.write(rows, self._fill)

    def reserve(self, length: int) -> None:
        """Make room for rows below `length`."""
        if length <= len(self._values):
            return
        larger = np.full(max(length, 2 * len(self._values), INITIAL_ROWS), self._fill, self.dtype)
        larger[: len(self._values)] = self._values
        self._values = larger
        # Frozen columns share the array just left behind, to which nothing writes any more.
        self._frozen = []

    def freeze(self, length: int) -> FrozenColumn:
        """The first `length` rows as they are now; takes a time independent of `length`."""
        frozen = FrozenColumn(self._values, length, self._lock)
        self._frozen = [each for each in self._frozen if each() is not None]
        self._frozen.append(weakref.ref(frozen))
        return frozen

    def _save_preimages(self, rows: Rows) -> None:
        """Save the segments of `rows` for the frozen columns that still share them."""
        readers = list(self._readers())
        self._frozen = [weakref.ref(each) for each in readers]
        if not readers:
            return
        touched = np.zeros(segment_count(len(self._values)), np.bool_)
        touched[rows >> SEGMENT_BITS] = True
        for segment in np.flatnonzero(touched).tolist():
            self._save_preimage(segment, readers)

    def _readers(self) -> Iterator[FrozenColumn]:
        """The frozen columns that are still in use and still share a segment."""
        for reference in self._frozen:
            frozen = reference()
            if frozen is not None and frozen.shared.any():
                yield frozen

    def _save_preimage(self, segment: int, readers: list[FrozenColumn]) -> None:
        with self._lock:
            sharing = [r for r in readers if segment < len(r.shared) and r.shared[segment]]
            if not sharing:
                return
            first = segment << SEGMENT_BITS
            # One copy serves all readers: the segment has not changed since the oldest cut.
            preimage = self._values[first : first + SEGMENT_ROWS].copy()
            for reader in sharing:
                reader.keep(segment, preimage)


def segment_count(length: int) -> int:
    return -(-length // SEGMENT_ROWS)


def first_row(segment: int) -> int:
    return segment << SEGMENT_BITS


def segment_of(flags: npt.NDArray[np.bool_], segment: int, length: int) -> npt.NDArray[np.bool_]:
    """The flags of one segment's rows below `length`; False where `flags` is too short."""
    first = segment << SEGMENT_BITS
    part = flags[first : min(first + SEGMENT_ROWS, length)]
    padded = np.zeros(min(SEGMENT_ROWS, length - first), np.bool_)
    padded[: len(part)] = part
    return padded
