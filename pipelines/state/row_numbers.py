"""Which row numbers of a table are in use. Numbers of deleted rows are reused, newest first."""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


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
