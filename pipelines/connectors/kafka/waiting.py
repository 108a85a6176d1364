"""Fetched records of one partition that are not handed out yet, and how many there may be.

A consumer delivers the records of all its partitions in one sequence, whichever you ask for; those
of the other partitions wait here. Says when a partition has to pause; pauses none itself.
"""

from collections import deque

import numpy as np

from pipelines.connectors.kafka.fetched import Fetched, joined

BATCH_ROWS = 20_000
BATCH_BYTES = 16 * 1024 * 1024


class WaitingRecords:
    """In order. Pauses at two batches and resumes below one, so it holds less than two batches and
    what came with the fetch that filled it.
    """

    def __init__(self, end_offset: int | None) -> None:
        self._end_offset = end_offset
        self._fetched: deque[Fetched] = deque()
        self._rows = 0
        self._bytes = 0
        self._end_seen = 0
        self.is_paused = False

    def __len__(self) -> int:
        return self._rows

    @property
    def has_batch(self) -> bool:
        return self._rows >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    @property
    def is_full(self) -> bool:
        return self._rows >= 2 * BATCH_ROWS or self._bytes >= 2 * BATCH_BYTES

    @property
    def end(self) -> int:
        """The end behind what was taken: only transaction markers come before it, and consumers
        do not get those. 0 if not known.
        """
        return 0 if self._rows else self._end_seen

    def add(self, fetched: Fetched) -> None:
        """`fetched` holds at least one record."""
        if self._end_offset is not None and fetched.offsets[-1] >= self._end_offset:
            inside = int(np.searchsorted(fetched.offsets, self._end_offset))
            self.on_end(int(fetched.offsets[inside]))
            fetched, _ = fetched.divided(inside)
        self._put(fetched)

    def on_end(self, offset: int) -> None:
        self._end_seen = offset

    def take(self) -> Fetched:
        """The next batch, or as much of it as there is."""
        parts: list[Fetched] = []
        rows, bytes_ = BATCH_ROWS, BATCH_BYTES  # the room that is left
        while self._fetched and rows > 0 and bytes_ > 0:
            first = self._fetched.popleft()
            taken, rest = first.divided(first.fitting_count(rows, bytes_))
            if len(rest):
                self._fetched.appendleft(rest)
            parts.append(taken)
            rows, bytes_ = rows - len(taken), bytes_ - taken.bytes
        self._rows -= BATCH_ROWS - rows
        self._bytes -= BATCH_BYTES - bytes_
        return joined(parts)

    def _put(self, fetched: Fetched) -> None:
        if len(fetched):
            self._fetched.append(fetched)
            self._rows += len(fetched)
            self._bytes += fetched.bytes
