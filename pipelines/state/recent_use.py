"""When each row of a table was last used, so that those unused for longest can leave the memory."""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


class RecentUse:
    """Time is the number of calls of the operator."""

    def __init__(self) -> None:
        self._used: Rows = np.zeros(0, np.int64)  # by row
        self._now = 0

    def tick(self) -> None:
        self._now += 1

    def note(self, rows: Rows, length: int) -> None:
        """These rows are used now; all row numbers are below `length`."""
        if length > len(self._used):
            larger = np.zeros(max(length, 2 * len(self._used)), np.int64)
            larger[: len(self._used)] = self._used
            self._used = larger
        self._used[rows] = self._now

    def oldest(self, rows: Rows, count: int) -> Rows:
        """`count` of these rows, which have all been noted: none of the others is older."""
        if count >= len(rows):
            return rows
        return rows[np.argpartition(self._used[rows], count)[:count]]
