"""How long a subtask works on one batch: a batch that would take too long is handled in pieces.

Between two pieces the subtask looks at its mailbox: output is committed, and an abort is heard,
while a long batch is in work. A barrier stays behind all pieces, and so does event time, as if the
sender had sent smaller batches.

Work is processor time of the subtask's thread. By the clock, a machine with too much to do would
cut batches ever smaller and, because each batch has a cost of its own, have ever more to do. So a
function that waits for an answer is not cut. The cost of a row is an average of the newest batches
of the same input (the sides of a join do not cost the same): small ones count for little, and one
that took longer for another reason is soon forgotten.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipelines.domain.elements import Part
from pipelines.runtime.subtask.feed import Process

LEAST_ROWS = 1_024
"""What each piece costs by itself, most often some tenths of a millisecond, stays a small part."""

PLANNED_PART = 0.8
"""Of the longest time, for a piece: rows of one operator do not all cost the same."""

MEMORY = 0.8
"""The weight of what was measured before, at each batch."""


@dataclass(slots=True)
class _Measured:
    """Batches of one input; each counts less as others follow."""

    rows: float = 0.0
    ms: float = 0.0

    def add(self, rows: int, took_ms: float) -> None:
        self.rows = self.rows * MEMORY + rows
        self.ms = self.ms * MEMORY + took_ms

    @property
    def ms_per_row(self) -> float:
        return self.ms / self.rows


class WorkPieces:
    """Guarantee: the pieces of a batch are the batch, row by row, with where each row came from.

    Measures from when a piece is given out to when its reader comes back. `longest_ms` 0: every
    batch is one piece, and nothing is measured.
    """

    def __init__(self, worked_ms: Callable[[], float], longest_ms: float) -> None:
        """`worked_ms`: how long the calling thread has worked so far."""
        self._worked_ms = worked_ms
        self._longest_ms = longest_ms
        self._port = self._rows_begun = 0  # no rows: nothing is in work that tells a cost
        self._began_ms = 0.0
        self._measured: defaultdict[int, _Measured] = defaultdict(_Measured)  # by port

    def begin(self, piece: Process) -> None:
        """The reader gets this piece."""
        if self._longest_ms:
            self._port, self._rows_begun = piece.port, piece.batch.num_rows
            self._began_ms = self._worked_ms()

    def end(self) -> None:
        """The reader has handled what it got last, if anything."""
        if not self._rows_begun:
            return
        took_ms = self._worked_ms() - self._began_ms
        self._measured[self._port].add(self._rows_begun, took_ms)
        self._rows_begun = 0

    def of(self, process: Process) -> Iterator[Process]:
        rows, parts = process.batch.num_rows, list(process.parts)
        step = self._step(process.port, rows)
        if step >= rows:
            yield process
            return
        for start in range(0, rows, step):
            piece = process.batch.slice(start, step)
            yield Process(process.port, piece, parts_within(parts, start, piece.num_rows))

    def _step(self, port: int, rows: int) -> int:
        expected_ms = self._ms_per_row(port) * rows
        if expected_ms <= self._longest_ms * PLANNED_PART or rows <= LEAST_ROWS:
            return rows
        count = int(expected_ms / (self._longest_ms * PLANNED_PART)) + 1
        return max(LEAST_ROWS, -(-rows // count))

    def _ms_per_row(self, port: int) -> float:
        """Of an input that has brought nothing yet, what the dearest of the others costs."""
        if port in self._measured:
            return self._measured[port].ms_per_row
        return max((each.ms_per_row for each in self._measured.values()), default=0.0)


def parts_within(parts: Sequence[Part], start: int, rows: int) -> list[Part]:
    """The parts of a batch, as far as they lie within some of its rows."""
    found: list[Part] = []
    at, end = 0, start + rows
    for origins, count in parts:
        shared = min(at + count, end) - max(at, start)
        if shared > 0:
            found.append((origins, shared))
        at += count
    return found
