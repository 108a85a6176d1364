"""One side of a join: its rows as durable state, and an index of them by key and by time.

The index is built when the first element arrives, after a restore has loaded the rows. It consists
of runs, each sorted by the hash of the key and then by time, so a few binary searches look up a
whole batch of keys. A run contains only numbers: rows are read where the state keeps them, which is
in memory with every backend. Runs of similar size are merged, so that there are few runs and each
number moves a logarithmic number of times. Another thread merges large runs, so that barriers can
pass meanwhile. Rows of equal hash are compared by key; null equals nothing.

Source: O'Neil et al., "The log-structured merge-tree" (1996), for the runs.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.errors import check
from pipelines.operators.columns import Flags, Longs, by_value, longs
from pipelines.operators.rows import row_list
from pipelines.state.backend import BatchList, StateBackend
from pipelines.state.entries import ranks
from pipelines.state.hashing import Hashes, is_bijective, key_hashes

MAX_PAIRS = 1 << 20
"""The most pairs that are handled together, unless one row alone has more partners."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Pairs: the positions of keys among those asked for, and the row that each of them found."""

    positions: Longs
    found: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Keys to look up, each with the first and the last time that its partners may have.

    `order` sorts the hashes, because a search for sorted ones takes a fifth of the time.
    """

    keys: pa.RecordBatch
    hashes: Hashes
    order: Longs
    earliest: Longs | None  # None means any time
    latest: Longs | None

    @classmethod
    def of(
        cls, keys: pa.RecordBatch, hashes: Hashes, earliest: Longs | None, latest: Longs | None
    ) -> "_Lookup":
        return cls(keys, hashes, np.argsort(hashes, kind="stable"), earliest, latest)

    def only(self, rows: Longs) -> "_Lookup":
        keys, hashes = self.keys.take(pa.array(rows)), self.hashes[rows]
        return _Lookup.of(keys, hashes, _at(self.earliest, rows), _at(self.latest, rows))

    def equals(self, rows: Longs, found: pa.RecordBatch) -> Flags:
        """Flags the rows that have the same key as the row that their hash found, in order."""
        names, keys = self.keys.schema.names, self.keys
        columns = [keys.column(0), found.column(names[0])]
        if is_bijective(keys.schema) and not any(column.null_count for column in columns):
            return np.ones(len(rows), np.bool_)
        same, keys = np.ones(len(rows), np.bool_), keys.take(pa.array(rows))
        for name in names:
            equal = pc.fill_null(pc.equal(keys.column(name), found.column(name)), False)
            same &= equal.to_numpy(zero_copy_only=False)
        return same


def _at(times: Longs | None, rows: Longs) -> Longs | None:
    return None if times is None else times[rows]


MERGED_AT_ONCE = 1 << 18
"""The most rows that the subtask's thread merges itself, in some tens of milliseconds."""

RUNS_MAX = 64
"""From this many runs on, the subtask waits for the merging thread: a lookup reads all runs."""

_MERGER = ThreadPoolExecutor(1, thread_name_prefix="join-index")


class RowsInPlace:
    """The rows of a state, each identified by its time and by its number within its bucket.

    A bucket of `width_ms` is a namespace of the state, and numbers are in order of arrival.
    """

    def __init__(self, rows: BatchList, width_ms: int) -> None:
        self._rows = rows
        self._width_ms = width_ms
        self._numbered: dict[int, int] = {}  # by bucket: how many rows have a number

    def buckets(self, times: Longs) -> Longs:
        return times - times % self._width_ms

    def next_numbers(self, times: Longs) -> Longs:
        """Numbers rows that are just being added to the state, in their order."""
        buckets = self.buckets(times)
        if (buckets == buckets[0]).all():
            begin = self._numbered.get(int(buckets[0]), 0)
            self._numbered[int(buckets[0])] = end = begin + len(buckets)
            return np.arange(begin, end)
        distinct, bucket = np.unique(buckets, return_inverse=True)
        begins = np.array([self._numbered.get(each, 0) for each in distinct.tolist()], np.int64)
        counts = np.bincount(bucket)
        for each, begin, count in zip(distinct.tolist(), begins.tolist(), counts, strict=True):
            self._numbered[each] = begin + int(count)
        return begins[bucket] + ranks(bucket)

    def pop(self, buckets: Iterable[int]) -> None:
        """Removes buckets. A bucket that comes back numbers its rows from 0 again."""
        for bucket in buckets:
            self._rows.pop(bucket)
            self._numbered.pop(bucket, None)

    def take(self, times: Longs, numbers: Longs) -> tuple[Longs, pa.RecordBatch]:
        """Returns an order that keeps rows of a batch together, and the rows in that order."""
        order, taken = self._by_batch(times, numbers)
        return order, pa.concat_batches(taken)

    def _by_batch(self, times: Longs, numbers: Longs) -> tuple[Longs, list[pa.RecordBatch]]:
        buckets = self.buckets(times)
        if len(buckets) and (buckets == buckets[0]).all():
            return self._of_bucket(int(buckets[0]), numbers)
        orders, taken = [], []
        for bucket in np.unique(buckets).tolist():
            rows = np.flatnonzero(buckets == bucket)
            order, batches = self._of_bucket(bucket, numbers[rows])
            orders.append(rows[order])
            taken += batches
        return np.concatenate(orders), taken

    def _of_bucket(self, bucket: int, numbers: Longs) -> tuple[Longs, list[pa.RecordBatch]]:
        batches = self._rows.batches(bucket)
        check(len(batches) < 1 << 16, "a bucket has few batches", bucket=bucket)
        ends = np.cumsum([each.num_rows for each in batches])
        of_batch = np.searchsorted(ends, numbers, side="right").astype(np.uint16)  # sorted fast
        order = np.argsort(of_batch, kind="stable")
        counts = np.bincount(of_batch, minlength=len(batches))
        within = numbers[order] - np.repeat(np.append(0, ends[:-1]), counts)
        part_ends = np.cumsum(counts).tolist()
        parts = zip(batches, [0, *part_ends], part_ends, strict=False)
        wanted = pa.array(within)
        return order, [each.take(wanted[begin:end]) for each, begin, end in parts if end > begin]


class RowIndex:
    """Finds rows of a state. A side that adds rows here also adds them to the state."""

    def __init__(self, keys: tuple[str, ...], rows: RowsInPlace) -> None:
        self._keys = list(keys)
        self._rows = rows
        self._runs: list[_Run] = []
        self._merging: _Merging | None = None

    def add(self, rows: pa.RecordBatch, times: Longs) -> None:
        if rows.num_rows == 0:
            return
        self._take_merged()
        numbers = self._rows.next_numbers(times)
        self._runs.append(_Run.sorted(key_hashes(rows, self._keys), times, numbers))
        while self._may_merge(len(self._runs) - 2, MERGED_AT_ONCE):
            before, last = self._runs[-2:]
            self._runs[-2:] = [_Run.merged(before, last)]
        if self._merging is None:
            self._begin_merging()

    def _may_merge(self, place: int, rows_max: float) -> bool:
        """True if that run and the next one are similar in size, and no other thread has them."""
        if place < 0:
            return False
        run, younger = self._runs[place : place + 2]
        merging = self._merging
        if merging is not None and {merging.run, merging.younger} & {run, younger}:
            return False
        return len(run) < 2 * len(younger) and len(run) + len(younger) <= rows_max

    def _begin_merging(self) -> None:
        for place in reversed(range(len(self._runs) - 1)):
            if self._may_merge(place, math.inf):
                run, younger = self._runs[place : place + 2]
                merged = _MERGER.submit(_Run.merged, run, younger)
                self._merging = _Merging(run, younger, merged)
                return

    def _take_merged(self) -> None:
        """Takes the run that the other thread has merged. Raises what that thread raised."""
        merging = self._merging
        if merging is None or not (merging.merged.done() or len(self._runs) >= RUNS_MAX):
            return
        self._merging, merged = None, merging.merged.result()
        for place, run in enumerate(self._runs[:-1]):
            # If old rows were dropped meanwhile, one of the two may be another run now.
            if run is merging.run and self._runs[place + 1] is merging.younger:
                self._runs[place : place + 2] = [merged]
                return

    def match(
        self, keys: pa.RecordBatch, earliest: Longs | None = None, latest: Longs | None = None
    ) -> Iterator[Matches]:
        """Yields all partners of each key with a time between the two, both included."""
        lookup = self._lookup(keys, earliest, latest)
        for run in self._runs:
            yield from run.match(lookup, self._rows)

    def contains(self, keys: pa.RecordBatch) -> Flags:
        """True for each key that has any row."""
        lookup = self._lookup(keys, None, None)
        is_known = np.zeros(keys.num_rows, np.bool_)
        for run in self._runs:
            is_known |= run.contains(lookup, self._rows)
        return is_known

    def _lookup(
        self, keys: pa.RecordBatch, earliest: Longs | None, latest: Longs | None
    ) -> _Lookup:
        keys = keys.select(self._keys)
        return _Lookup.of(keys, key_hashes(keys, self._keys), earliest, latest)

    def drop_before(self, time_ms: int) -> None:
        """Forgets older rows, which leave the state."""
        runs = [r if r.oldest_ms >= time_ms else r.only(r.times >= time_ms) for r in self._runs]
        self._runs = [run for run in runs if len(run)]


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A sorted part of the index. A position is the place of a row in it.

    `hashes` are distinct and ascend; `begins` and `ends` bound the positions of each, by time.
    `times` and `numbers` identify the row at each position.
    """

    hashes: Hashes
    begins: Longs
    ends: Longs
    times: Longs
    numbers: Longs
    oldest_ms: int

    @classmethod
    def sorted(cls, hashes: Hashes, times: Longs, numbers: Longs) -> "_Run":
        order = np.lexsort((times, hashes))
        ordered = hashes[order]
        begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(order)])
        ends = np.append(begins[1:], len(order))
        oldest_ms = int(times.min(initial=_EVER))
        return cls(ordered[begins], begins, ends, times[order], numbers[order], oldest_ms)

    @classmethod
    def merged(cls, older: "_Run", younger: "_Run") -> "_Run":
        return cls.sorted(
            np.concatenate([older._hash_of_each(), younger._hash_of_each()]),
            np.concatenate([older.times, younger.times]),
            np.concatenate([older.numbers, younger.numbers]),
        )

    def only(self, kept: Flags) -> "_Run":
        return self.sorted(self._hash_of_each()[kept], self.times[kept], self.numbers[kept])

    def __len__(self) -> int:
        return len(self.times)

    def contains(self, lookup: _Lookup, stored: RowsInPlace) -> Flags:
        """Compares the first row of each hash, and the others only if that one has another key."""
        is_known = np.zeros(len(lookup.hashes), np.bool_)
        rows, place = self._of_equal_hash(lookup)
        if len(rows) == 0:
            return is_known
        order, first = self._taken(self.begins[place], stored)
        rows = rows[order]
        is_known[rows] = lookup.equals(rows, first)
        collided = rows[~is_known[rows]]
        if len(collided):
            for matches in self.match(lookup.only(collided), stored):
                is_known[collided[matches.positions]] = True
        return is_known

    def match(self, lookup: _Lookup, stored: RowsInPlace) -> Iterator[Matches]:
        rows, place = self._of_equal_hash(lookup)
        first, end = self._within(place, _at(lookup.earliest, rows), _at(lookup.latest, rows))
        for part in _parts(end - first):
            of_lookup, positions = _spread(rows[part], first[part], end[part])
            if len(positions) == 0:
                continue
            order, found = self._taken(positions, stored)
            of_lookup = of_lookup[order]
            same = lookup.equals(of_lookup, found)
            if same.all():
                yield Matches(of_lookup, found)
            else:
                yield Matches(of_lookup[same], found.filter(pa.array(same)))

    def _of_equal_hash(self, lookup: _Lookup) -> tuple[Longs, Longs]:
        """Returns which of the keys have rows here, and the number of each one's hash."""
        number = np.empty(len(lookup.hashes), np.int64)
        number[lookup.order] = np.searchsorted(self.hashes, lookup.hashes[lookup.order])
        number = np.minimum(number, len(self.hashes) - 1)
        rows = np.flatnonzero(self.hashes[number] == lookup.hashes)
        return rows, number[rows]

    def _within(
        self, number: Longs, earliest: Longs | None, latest: Longs | None
    ) -> tuple[Longs, Longs]:
        """Returns the positions of each hash between the times; all searches halve in step."""
        first, end = self.begins[number], self.ends[number]
        if earliest is not None:
            first = _search(self.times, first, end, earliest)
        if latest is not None:
            end = _search(self.times, first, end, latest + 1)
        return first, end

    def _taken(self, positions: Longs, stored: RowsInPlace) -> tuple[Longs, pa.RecordBatch]:
        return stored.take(self.times[positions], self.numbers[positions])

    def _hash_of_each(self) -> Hashes:
        return np.repeat(self.hashes, self.ends - self.begins)


@dataclass(frozen=True, slots=True)
class _Merging:
    run: _Run
    younger: _Run
    merged: Future[_Run]


def _search(times: Longs, low: Longs, high: Longs, wanted: Longs) -> Longs:
    """Finds, in each slice [low, high) of `times`, which ascend there, the first >= `wanted`."""
    low, high = low.copy(), high.copy()
    while (is_open := low < high).any():
        middle = (low + high) // 2
        is_before = is_open & (times[np.where(is_open, middle, 0)] < wanted)
        low = np.where(is_before, middle + 1, low)
        high = np.where(is_open & ~is_before, middle, high)
    return low


def _parts(counts: Longs) -> Iterator[slice]:
    """Divides rows into slices whose pairs together stay below MAX_PAIRS."""
    total = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        before = total[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(total, before + MAX_PAIRS, side="right")))
        yield slice(begin, end)
        begin = end


def _spread(rows: Longs, first: Longs, end: Longs) -> tuple[Longs, Longs]:
    counts = end - first
    offsets = np.cumsum(counts) - counts
    positions = np.repeat(rows, counts)
    return positions, np.arange(len(positions)) - np.repeat(offsets - first, counts)


class TimedSide:
    """Rows with event time, kept in buckets of time, so that old ones are dropped by bucket."""

    def __init__(
        self,
        state: StateBackend,
        name: str,
        schema: pa.Schema,
        keys: tuple[str, ...],
        time_column: str,
        bucket_ms: int,
    ) -> None:
        self._keys = keys
        self._time_column = time_column
        self._bucket_ms = bucket_ms
        described = row_list(name, schema, keys, time_column, stays_in_memory=True)
        self._rows = state.batch_list(described)
        self._in_place = RowsInPlace(self._rows, bucket_ms)
        self._index: RowIndex | None = None

    @property
    def index(self) -> RowIndex:
        """The index. Rows in an older version's buckets of another width move to this one's."""
        if self._index is None:
            self._index = RowIndex(self._keys, self._in_place)
            others: list[pa.RecordBatch] = []
            for bucket in self._rows.namespaces_at_most(_EVER):
                times = [self._times(batch) for batch in self._rows.batches(bucket)]
                if any((self._in_place.buckets(each) != bucket).any() for each in times):
                    others += self._rows.pop(bucket)
            for bucket in self._rows.namespaces_at_most(_EVER):
                for batch in self._rows.batches(bucket):
                    self._index.add(batch, self._times(batch))
            for batch in others:
                self.add(batch, self._times(batch))
        return self._index

    def _times(self, rows: pa.RecordBatch) -> Longs:
        return longs(rows.column(self._time_column))

    def add(self, rows: pa.RecordBatch, times_ms: Longs) -> None:
        self.index.add(rows, times_ms)
        for bucket, of_bucket in by_value(rows, self._in_place.buckets(times_ms)):
            self._rows.append(bucket, of_bucket)

    def drop_before(self, time_ms: int) -> None:
        """Drops rows older than that; those in the same bucket as that time stay for a while."""
        gone = self._rows.namespaces_at_most(time_ms - self._bucket_ms)
        if gone:
            self.index.drop_before(gone[-1] + self._bucket_ms)
        self._in_place.pop(gone)


class KeptSide:
    """Rows that are kept for ever, or for a time-to-live after they arrived.

    Rows are in buckets of processing time and are dropped with their whole bucket, so each stays
    for the time-to-live and up to a sixteenth of it more.
    """

    def __init__(
        self,
        state: StateBackend,
        name: str,
        schema: pa.Schema,
        keys: tuple[str, ...],
        ttl_ms: int | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._keys = keys
        self._ttl_ms = ttl_ms
        self._now_ms = now_ms
        self._rows = state.batch_list(row_list(name, schema, keys, stays_in_memory=True))
        self._in_place = RowsInPlace(self._rows, _EACH_ITS_OWN)
        self._index: RowIndex | None = None

    @property
    def index(self) -> RowIndex:
        """The index. If the time-to-live is new, rows begin to age when it first applies."""
        if self._index is None:
            self._index = RowIndex(self._keys, self._in_place)
            if self._ttl_ms is not None:
                bucket = self._bucket()
                for rows in self._rows.pop(_KEPT_FOR_EVER):
                    self._rows.append(bucket, rows)
            for bucket in self._rows.namespaces_at_most(_EVER):
                for rows in self._rows.batches(bucket):
                    self._index.add(rows, np.full(rows.num_rows, bucket, np.int64))
        return self._index

    def add(self, rows: pa.RecordBatch) -> None:
        bucket = self._bucket()
        self.index.add(rows, np.full(rows.num_rows, bucket, np.int64))
        self._rows.append(bucket, rows)

    def match(self, keys: pa.RecordBatch) -> Iterator[Matches]:
        if self._ttl_ms is None:
            return self.index.match(keys)
        earliest = np.full(keys.num_rows, self._newest_expired(self._ttl_ms) + 1, np.int64)
        return self.index.match(keys, earliest)

    def drop_expired(self) -> None:
        if self._ttl_ms is None:
            return
        gone = self._rows.namespaces_at_most(self._newest_expired(self._ttl_ms))
        if gone:
            self.index.drop_before(gone[-1] + 1)
        self._in_place.pop(gone)

    def _bucket(self) -> int:
        if self._ttl_ms is None:
            return _KEPT_FOR_EVER
        now_ms = self._now_ms()
        return now_ms - now_ms % self._bucket_ms

    def _newest_expired(self, ttl_ms: int) -> int:
        """Returns the latest beginning of buckets that ended `ttl_ms` or longer ago."""
        return self._now_ms() - ttl_ms - self._bucket_ms

    @property
    def _bucket_ms(self) -> int:
        return max(1, (self._ttl_ms or 0) // _BUCKETS)


_EVER = 2**62
_KEPT_FOR_EVER = 0
_EACH_ITS_OWN = 1  # the time of a row is its bucket
_BUCKETS = 16
