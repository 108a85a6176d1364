"""A source as a spout: decides which of its records are in flight, and which it emits again.

Each try of a record is a tree of its own (`protocol.acking`), so that late messages about a try
that was given up cannot settle the next one. Owns numbers only; the host keeps the batches, and
drops one once all of its records were processed.

Pure: the host says when a timeout has passed. Source: Storm, `SpoutExecutor` (its pending map, a
`RotatingMap`; `topology.max.spout.pending`) and `KafkaSpout`, which emits failed records before new
ones, and commits only up to the oldest record that is not processed.
"""

from collections import deque
from dataclasses import dataclass
from typing import NewType

import numpy as np

from pipelines.domain.errors import check
from pipelines.protocol.acking import SETTLED, Ids, Numbers, RotatingTrees, tree_ids

BatchNumber = NewType("BatchNumber", int)
"""Batches are numbered from 0 in the order of reading."""

BUCKET_COUNT = 3
"""A try is given up between two and three rotations after it began."""

_IN_FLIGHT = 1
_ROW_BITS = np.uint64(32)
_ROW_MASK = np.uint64((1 << 32) - 1)


@dataclass(frozen=True, slots=True)
class Emission:
    """Emit these rows of this batch now; `trees` are their ids, row by row."""

    batch: BatchNumber
    rows: Numbers
    trees: Ids
    is_replay: bool


@dataclass(frozen=True, slots=True)
class SpoutStatistics:
    emitted_count: int  # including replays
    replayed_count: int
    acked_count: int
    failed_count: int
    timed_out_count: int
    in_flight_count: int


class Spout:
    """Guarantee: each record is emitted until one try of it is acked; at most `in_flight_max`
    records are in flight; `oldest_open` never passes a record that is not acked.
    """

    def __init__(self, spout: int, *, in_flight_max: int) -> None:
        check(in_flight_max >= 1, "something may be in flight", in_flight_max=in_flight_max)
        self._spout = spout
        self._in_flight_max = in_flight_max
        self._kept = RotatingTrees(BUCKET_COUNT)
        self._waiting: deque[tuple[BatchNumber, Numbers]] = deque()  # read, never emitted
        self._again: deque[tuple[BatchNumber, Numbers]] = deque()
        self._open: dict[BatchNumber, int] = {}  # records not acked, in the order of reading
        self._batch_count = 0
        self._in_flight_count = self._emitted_count = self._replayed_count = 0
        self._acked_count = self._failed_count = self._timed_out_count = 0

    @property
    def wants_records(self) -> bool:
        """True if the host should read a batch: nothing waits to be emitted, and there is room."""
        has_waiting = bool(self._waiting or self._again)
        return not has_waiting and self._in_flight_count < self._in_flight_max

    @property
    def oldest_open(self) -> BatchNumber | None:
        """The first batch with a record that is not processed: where an attempt would begin."""
        return next(iter(self._open), None)

    def on_read(self, record_count: int) -> BatchNumber:
        """Adds a batch of so many records; `take` says when to emit them."""
        check(0 < record_count <= int(_ROW_MASK), "a batch has records", records=record_count)
        batch = BatchNumber(self._batch_count)
        self._batch_count += 1
        self._open[batch] = record_count
        self._waiting.append((batch, np.arange(record_count, dtype=np.int64)))
        return batch

    def take(self) -> Emission | None:
        """What to emit next, failed records first; None: nothing waits, or enough is in flight."""
        queue = self._again or self._waiting
        room = self._in_flight_max - self._in_flight_count
        if not queue or not room:
            return None
        is_replay = queue is self._again
        batch, rows = queue.popleft()
        if len(rows) > room:
            queue.appendleft((batch, rows[room:]))
        return self._emit(batch, rows[:room], is_replay)

    def on_acked(self, numbers: Numbers) -> list[BatchNumber]:
        """These trees are processed. Returns the batches that are no longer needed."""
        records = self._settle(self._places(numbers))
        self._acked_count += len(records)
        released = []
        for batch, rows in _by_batch(records):
            self._open[batch] -= len(rows)
            if not self._open[batch]:
                del self._open[batch]
                released.append(batch)
        return released

    def on_failed(self, numbers: Numbers) -> None:
        """These trees have failed: `take` returns their records again."""
        self._failed_count += self._repeat(self._places(numbers))

    def rotate(self) -> None:
        """A share of the timeout has passed: repeat what has been in flight for all of it."""
        self._timed_out_count += self._repeat(self._kept.oldest_bucket())
        self._kept.rotate()

    def statistics(self) -> SpoutStatistics:
        return SpoutStatistics(
            self._emitted_count,
            self._replayed_count,
            self._acked_count,
            self._failed_count,
            self._timed_out_count,
            self._in_flight_count,
        )

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        self._kept.validate_state()
        in_flight = int((self._kept.states == _IN_FLIGHT).sum())
        check(in_flight == self._in_flight_count, "trees in flight are counted", kept=in_flight)
        check(in_flight <= self._in_flight_max, "few enough are in flight", in_flight=in_flight)
        queued = sum(len(rows) for _, rows in (*self._waiting, *self._again))
        check(sum(self._open.values()) == in_flight + queued, "a record waits or is in flight")
        check(list(self._open) == sorted(self._open), "batches are in the order of reading")

    def _emit(self, batch: BatchNumber, rows: Numbers, is_replay: bool) -> Emission:
        first = self._emitted_count  # one tree per try
        numbers = np.arange(first, first + len(rows), dtype=np.int64)
        places, _ = self._kept.find(numbers)
        self._kept.values[places] = (np.uint64(batch) << _ROW_BITS) | rows.astype(np.uint64)
        self._kept.states[places] = _IN_FLIGHT
        self._emitted_count += len(rows)
        self._replayed_count += len(rows) if is_replay else 0
        self._in_flight_count += len(rows)
        return Emission(batch, rows, tree_ids(self._spout, numbers), is_replay)

    def _places(self, numbers: Numbers) -> Numbers:
        """Where these trees are kept; leaves out those that were given up long ago."""
        check(bool((numbers < self._emitted_count).all()), "what was emitted is settled")
        places, _ = self._kept.find(numbers)
        return np.unique(places)

    def _settle(self, places: Numbers) -> Ids:
        """Takes these trees out of flight. Returns the records of those that were in flight."""
        in_flight = places[self._kept.states[places] == _IN_FLIGHT]
        self._kept.states[in_flight] = SETTLED
        self._in_flight_count -= len(in_flight)
        records: Ids = self._kept.values[in_flight]
        return records

    def _repeat(self, places: Numbers) -> int:
        records = self._settle(places)
        self._again.extend(_by_batch(records))
        return len(records)


def _by_batch(records: Ids) -> list[tuple[BatchNumber, Numbers]]:
    """Batches with their rows, both in the order of reading."""
    if not len(records):
        return []
    ordered = np.unique(records)
    batches, rows = ordered >> _ROW_BITS, (ordered & _ROW_MASK).astype(np.int64)
    numbers, starts = np.unique(batches, return_index=True)
    ends = [*starts[1:].tolist(), len(rows)]
    return [
        (BatchNumber(int(number)), rows[start:end])
        for number, start, end in zip(numbers, starts, ends, strict=True)
    ]
