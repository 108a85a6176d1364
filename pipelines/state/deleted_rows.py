"""Deleted rows of a RocksDB table whose keys the database may still hold.

They stay in memory as deleted until the flush that removes them from the database is done. An epoch
lasts from one cut to the next.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipelines.state.flushes import Flush

Rows = npt.NDArray[np.int64]


class DeletedRows:
    def __init__(self) -> None:
        self._now: list[Rows] = []
        self._waiting: list[tuple[Flush, int, Rows]] = []  # with the epoch of their deletion

    def add(self, rows: Rows) -> None:
        self._now.append(rows)

    def on_cut(self, flush: Flush, epoch: int) -> None:
        """This flush removes the rows deleted in this epoch from the database."""
        if self._now:
            self._waiting.append((flush, epoch, np.concatenate(self._now)))
            self._now = []

    def taken_over(self) -> Iterator[tuple[int, Rows]]:
        """Epochs and rows whose deletion the database has taken over by now; each once."""
        while self._waiting and self._waiting[0][0].is_done:
            _, epoch, rows = self._waiting.pop(0)
            yield epoch, np.unique(rows)
