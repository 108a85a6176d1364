"""Storm's acker, and a source as a spout: which records are in flight, and which are processed.

A tree is everything that descends from one record of a spout (a source, in this mode) in one try.
Every record that travels between two subtasks is an edge of the tree and has a random 64-bit id.
Two subtasks XOR this id into the tree: the one that sends the record and the one that has processed
it. So the tree's value is 0 when none of its records is under way, whatever the order of the
messages. A value may also become 0 by chance, with a probability of 2**-64 for each message that
leaves work under way. The record then counts as processed although it is not; Storm accepts this,
too.

A tree's id consists of its spout and its number within the spout. A spout numbers its trees without
gaps, so the machines keep them in arrays: 9 bytes per tree, however large the tree is. They look up
a whole message at once. Only the ids of edges have to be unpredictable. Each try of a record is a
tree of its own, so that late messages about a try that was given up cannot settle the next one. The
acker does not report trees that never settle: the spout gives them up itself.

Pure: no clock, no I/O. Messages are arrays, and one message covers many trees. The host says when a
timeout has passed. It keeps the batches, and drops each one once all its records are processed.

Source: Storm, `org.apache.storm.daemon.Acker` (JStorm's is the same), `MessageId` (whose root ids
are drawn at random), `RotatingMap`, `SpoutExecutor` (its pending map;
`topology.max.spout.pending`) and `KafkaSpout`, which emits failed records before new ones, and
commits only up to the oldest record that is not processed.
"""

from collections import deque
from dataclasses import dataclass
from typing import NewType, TypeAlias

import numpy as np
import numpy.typing as npt

from pipelines.domain.errors import check

Ids: TypeAlias = npt.NDArray[np.uint64]
"""Ids of trees or of edges."""

Numbers: TypeAlias = npt.NDArray[np.int64]
"""Numbers of trees within their spout."""

SPOUTS_MAX = 1 << 16
SETTLED = 1 << 7
"""The state of a tree that was acked, failed or given up: later messages about it are late."""

_NUMBER_BITS = np.uint64(48)
_NUMBER_MASK = np.uint64((1 << 48) - 1)
_ROWS_AT_FIRST = 1024


def tree_ids(spout: int, numbers: Numbers) -> Ids:
    check(0 <= spout < SPOUTS_MAX, "a spout has 16 bits", spout=spout)
    return (np.uint64(spout) << _NUMBER_BITS) | numbers.astype(np.uint64)


def spouts_of(trees: Ids) -> Numbers:
    return (trees >> _NUMBER_BITS).astype(np.int64)


def numbers_of(trees: Ids) -> Numbers:
    return (trees & _NUMBER_MASK).astype(np.int64)


def ackers_of(trees: Ids, acker_count: int) -> Numbers:
    """Returns which of `acker_count` ackers follows each tree; the same in all subtasks."""
    return numbers_of(trees) % acker_count


class RotatingTrees:
    """A value and a state for every recent tree of one spout; both begin as 0.

    Guarantee: a tree is kept from its first mention through `bucket_count - 1` rotations, or until
    it and all before it are settled. So an unsettled tree is dropped by the next rotation after
    that. Needs trees to be first mentioned in order; a skipped one has the age of the next one.
    """

    def __init__(self, bucket_count: int) -> None:
        check(bucket_count >= 2, "a tree outlives a rotation", bucket_count=bucket_count)
        self.base = 0  # the oldest number that is kept
        self._end = 0  # one past the newest number mentioned
        self._ends = deque([0] * (bucket_count - 1), maxlen=bucket_count - 1)  # of the buckets
        self.values = np.zeros(_ROWS_AT_FIRST, np.uint64)
        self.states = np.zeros(_ROWS_AT_FIRST, np.uint8)

    def find(self, numbers: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Returns the places of those `numbers` that are kept, and a mask that marks them.

        The places index `values` and `states`, and are valid until the next call.
        """
        self._end = max(self._end, int(numbers.max(initial=-1)) + 1)
        if self._end - self.base > len(self.values):
            self._make_room()
        is_kept = numbers >= self.base
        return numbers[is_kept] - self.base, is_kept

    def oldest_bucket(self) -> Numbers:
        """The places that the next rotation drops."""
        return np.arange(max(0, self._ends[0] - self.base), dtype=np.int64)

    def rotate(self) -> None:
        self._drop(len(self.oldest_bucket()))
        self._ends.append(self._end)

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        ends = list(self._ends)
        check(ends == sorted(ends), "a bucket ends behind the one before it", ends=ends)
        check(ends[-1] <= self._end, "buckets end where trees were mentioned", ends=ends)
        check(len(self.values) == len(self.states), "each tree has a value and a state")
        kept = self._end - self.base
        check(kept <= len(self.values), "each tree that is kept has its place", kept=kept)

    def _make_room(self) -> None:
        """Doubles the room unless half of it is settled, so a tree is copied only a few times."""
        is_open = self.states != SETTLED
        settled = int(is_open.argmax()) if is_open.any() else len(is_open)
        if settled >= len(self.states) // 2:
            self._drop(settled)
        needed = self._end - self.base
        if needed > len(self.values):
            self._grow(max(needed, 2 * len(self.values)) - len(self.values))

    def _grow(self, count: int) -> None:
        self.values = np.concatenate([self.values, np.zeros(count, np.uint64)])
        self.states = np.concatenate([self.states, np.zeros(count, np.uint8)])

    def _drop(self, count: int) -> None:
        """Drops trees at the front; the room stays as it is."""
        if not count:
            return
        self.base += count
        self.values, self.states = self.values[count:], self.states[count:]
        self._grow(count)


BUCKET_COUNT = 3
"""As in Storm's acker, an unsettled tree is forgotten between two and three rotations later."""

_INITIALISED = 1
_FAILED = 2


@dataclass(frozen=True, slots=True)
class Settled:
    """The trees of a spout that are processed, and those that have failed."""

    spout: int
    acked: Numbers
    failed: Numbers


@dataclass(frozen=True, slots=True)
class AckerStatistics:
    init_count: int
    ack_count: int  # one per record and tree it belongs to, however many came in one message
    fail_count: int
    late_count: int  # messages about trees that are forgotten or settled
    acked_count: int  # trees


class Acker:
    """Follows the trees whose number is `index` modulo `count`.

    Guarantee: a tree is acked once, when its spout has announced it and each edge was XORed twice;
    or it fails once, when its spout has announced it and any of its records has failed. Later
    messages about it change nothing. Needs edge ids that are drawn at random, and one message that
    XORs an edge together with the edges that came out of it.
    """

    def __init__(self, *, index: int, count: int) -> None:
        check(0 <= index < count, "an acker is one of several", index=index, count=count)
        self._index = index
        self._count = count
        self._spouts: dict[int, RotatingTrees] = {}
        self._init_count = self._ack_count = self._fail_count = 0
        self._late_count = self._acked_count = 0

    def on_init(self, trees: Ids, edges: Ids) -> list[Settled]:
        """A spout has begun each of these trees with these edges, XORed."""
        self._init_count += len(trees)
        return self._on_message(trees, edges, _INITIALISED)

    def on_ack(self, trees: Ids, edges: Ids) -> list[Settled]:
        """Records were processed: each has its own edge XORed with those that came out of it."""
        self._ack_count += len(trees)
        return self._on_message(trees, edges, 0)

    def on_fail(self, trees: Ids) -> list[Settled]:
        """A record of each of these trees could not be processed."""
        self._fail_count += len(trees)
        return self._on_message(trees, np.zeros(len(trees), np.uint64), _FAILED)

    def rotate(self) -> None:
        """A timeout has passed: forget trees that have been here for `BUCKET_COUNT` timeouts."""
        for kept in self._spouts.values():
            kept.rotate()

    def statistics(self) -> AckerStatistics:
        return AckerStatistics(
            self._init_count,
            self._ack_count,
            self._fail_count,
            self._late_count,
            self._acked_count,
        )

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        for spout, kept in self._spouts.items():
            kept.validate_state()
            announced = kept.states == _INITIALISED
            has_due = bool((announced & (kept.values == 0)).any())
            check(not has_due, "a tree without edges under way is acked", spout=spout)
            has_failed = bool((kept.states == _INITIALISED | _FAILED).any())
            check(not has_failed, "a tree that was announced and failed is settled", spout=spout)

    def _on_message(self, trees: Ids, edges: Ids, mark: int) -> list[Settled]:
        check(len(trees) == len(edges), "each tree comes with its edges")
        spouts, numbers = spouts_of(trees), numbers_of(trees)
        check(bool((numbers % self._count == self._index).all()), "a tree has one acker")
        verdicts = []
        for spout in np.unique(spouts):
            mine = spouts == spout
            verdicts.append(self._update(int(spout), numbers[mine], edges[mine], mark))
        return [v for v in verdicts if len(v.acked) or len(v.failed)]

    def _update(self, spout: int, numbers: Numbers, edges: Ids, mark: int) -> Settled:
        kept = self._spouts.setdefault(spout, RotatingTrees(BUCKET_COUNT))
        places, is_kept = kept.find(numbers // self._count)  # numbered without gaps again
        is_open = kept.states[places] != SETTLED
        places, edges = places[is_open], edges[is_kept][is_open]
        self._late_count += len(numbers) - len(places)
        np.bitwise_xor.at(kept.values, places, edges)
        kept.states[places] |= np.uint8(mark)
        return self._settle(spout, kept, np.unique(places))

    def _settle(self, spout: int, kept: RotatingTrees, places: Numbers) -> Settled:
        states = kept.states[places]
        acked = places[(states == _INITIALISED) & (kept.values[places] == 0)]
        failed = places[states == (_INITIALISED | _FAILED)]
        kept.states[acked] = kept.states[failed] = SETTLED
        self._acked_count += len(acked)
        return Settled(spout, self._numbers(kept, acked), self._numbers(kept, failed))

    def _numbers(self, kept: RotatingTrees, places: Numbers) -> Numbers:
        return (places + kept.base) * self._count + self._index


BatchNumber = NewType("BatchNumber", int)
"""Batches are numbered from 0 in the order of reading."""

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
        """Adds a batch of `record_count` records; `take` says when to emit them."""
        check(0 < record_count <= int(_ROW_MASK), "a batch has records", records=record_count)
        batch = BatchNumber(self._batch_count)
        self._batch_count += 1
        self._open[batch] = record_count
        self._waiting.append((batch, np.arange(record_count, dtype=np.int64)))
        return batch

    def take(self) -> Emission | None:
        """Returns what to emit next, failed records first; None if nothing may be emitted now."""
        queue = self._again or self._waiting
        free = self._in_flight_max - self._in_flight_count
        if not queue or not free:
            return None
        is_replay = queue is self._again
        batch, rows = queue.popleft()
        if len(rows) > free:
            queue.appendleft((batch, rows[free:]))
        return self._emit(batch, rows[:free], is_replay)

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
        """A share of the timeout has passed: repeat the records in flight for all of it."""
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
        """Returns the places of these trees, except those that were given up long ago."""
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
    """Returns the batches with their rows, both in the order of reading."""
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
