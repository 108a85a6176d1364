"""Limits how long a subtask works on one batch: it handles a batch that takes too long in pieces.

Between two pieces the subtask checks its mailbox, so it can commit output or handle an abort in the
middle of a long batch. A barrier stays behind all pieces, and so does event time, as if the sender
had sent smaller batches.

Work is the processor time of the subtask's thread. By the wall clock, an overloaded machine would
cut ever smaller batches, and the fixed cost of each batch would add to its load. Processor time
also means that a batch is not cut because a function waits for an answer. The cost of a row is an
average over the newest batches of the same input, because the sides of a join differ in cost. Small
batches count for little, and a batch that was slow for another reason is soon forgotten.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipelines.domain.origins import Part
from pipelines.runtime.subtask.feed import Process

LEAST_ROWS = 1_024
"""Enough rows that the fixed cost of a piece, usually some tenths of a millisecond, stays small."""

PLANNED_PART = 0.8
"""The share of the longest time planned for a piece: rows of one operator differ in cost."""

MEMORY = 0.8
"""The weight of earlier measurements when a batch is added."""


@dataclass(slots=True)
class _Measured:
    """The batches of one input; each counts less as others follow."""

    rows: float = 0.0
    ms: float = 0.0

    def add(self, rows: int, took_ms: float) -> None:
        self.rows = self.rows * MEMORY + rows
        self.ms = self.ms * MEMORY + took_ms

    @property
    def ms_per_row(self) -> float:
        return self.ms / self.rows


class WorkPieces:
    """Guarantee: the pieces of a batch have the same rows in the same order, with their origins.

    Measures from the time a piece is handed out until its reader returns. With `longest_ms` 0,
    every batch is one piece and nothing is measured.
    """

    def __init__(self, worked_ms: Callable[[], float], longest_ms: float) -> None:
        """`worked_ms`: returns how long the calling thread has worked so far."""
        self._worked_ms = worked_ms
        self._longest_ms = longest_ms
        self._port = self._rows_begun = 0  # no rows: no piece is being measured
        self._began_ms = 0.0
        self._measured: defaultdict[int, _Measured] = defaultdict(_Measured)  # by port

    def begin(self, piece: Process) -> None:
        """The reader gets this piece now."""
        if self._longest_ms:
            self._port, self._rows_begun = piece.port, piece.batch.num_rows
            self._began_ms = self._worked_ms()

    def end(self) -> None:
        """The reader has handled its last piece, if there was one."""
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
        """Returns the cost of a row; for an input without batches so far, that of the costliest."""
        if port in self._measured:
            return self._measured[port].ms_per_row
        return max((each.ms_per_row for each in self._measured.values()), default=0.0)


def parts_within(parts: Sequence[Part], start: int, rows: int) -> list[Part]:
    """Returns the parts of a batch, cut to `rows` rows from `start`."""
    found: list[Part] = []
    at, end = 0, start + rows
    for origins, count in parts:
        shared = min(at + count, end) - max(at, start)
        if shared > 0:
            found.append((origins, shared))
        at += count
    return found
