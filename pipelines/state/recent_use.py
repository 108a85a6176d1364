"""When each row of a table was last used, so that the longest unused rows can leave memory."""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


class RecentUse:
    """Counts time in calls of the operator."""

    def __init__(self) -> None:
        self._used: Rows = np.zeros(0, np.int64)  # by row
        self._now = 0

    def tick(self) -> None:
        self._now += 1

    def note(self, rows: Rows, length: int) -> None:
        """Notes a use of these rows; all row numbers are below `length`."""
        if length > len(self._used):
            larger = np.zeros(max(length, 2 * len(self._used)), np.int64)
            larger[: len(self._used)] = self._used
            self._used = larger
        self._used[rows] = self._now

    def oldest(self, rows: Rows, count: int) -> Rows:
        """The `count` longest unused of these rows, all of which have been noted."""
        if count >= len(rows):
            return rows
        return rows[np.argpartition(self._used[rows], count)[:count]]
