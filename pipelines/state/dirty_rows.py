"""Which rows of a table have changed since the last `take`.

One flag per row number. Used by the subtask's thread only; any thread may use what `take` returns.
"""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

INITIAL_ROWS = 1 << 10


class DirtyRows:
    def __init__(self) -> None:
        self._flags: Mask = np.zeros(INITIAL_ROWS, np.bool_)

    def mark(self, rows: Rows) -> None:
        self._reserve(rows)
        self._flags[rows] = True

    def clear(self, rows: Rows) -> None:
        self._reserve(rows)
        self._flags[rows] = False

    def count(self) -> int:
        return int(np.count_nonzero(self._flags))

    def take(self) -> Mask:
        """The flags so far; clears them all."""
        taken = self._flags
        self._flags = np.zeros(len(taken), np.bool_)
        return taken

    def _reserve(self, rows: Rows) -> None:
        needed = int(rows.max(initial=-1)) + 1
        if needed > len(self._flags):
            larger = np.zeros(max(needed, 2 * len(self._flags)), np.bool_)
            larger[: len(self._flags)] = self._flags
            self._flags = larger


def union(masks: list[Mask]) -> Mask:
    """The rows that are in any of the masks, which may differ in length."""
    merged = np.zeros(max((len(mask) for mask in masks), default=0), np.bool_)
    for mask in masks:
        merged[: len(mask)] |= mask
    return merged
