"""Names the trees that acking follows, and keeps a value and a state of each recent one.

A tree is all that descends from one record of a spout (a source, in this mode), in one try. Its id
consists of the spout and the tree's number there. A spout numbers its trees without a gap, so what
is kept of them lies in arrays, and a whole message is looked up at once. Only the ids of edges have
to be unpredictable, see `protocol.acking`.

Pure. Source: Storm, `MessageId` (whose root ids are drawn at random) and `RotatingMap`.
"""

from collections import deque
from typing import TypeAlias

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
    """Which of `acker_count` ackers follows each tree; all subtasks agree on it."""
    return numbers_of(trees) % acker_count


class RotatingTrees:
    """A value and a state for every recent tree of one spout; both begin as 0.

    Guarantee: a tree is kept from its first mention through `bucket_count - 1` rotations, or until
    it and all before it are settled. So it grows old between that many rotations and one more.
    Needs trees to be first mentioned in order; a skipped one has the age of the next one.
    """

    def __init__(self, bucket_count: int) -> None:
        check(bucket_count >= 2, "a tree outlives a rotation", bucket_count=bucket_count)
        self.base = 0  # the oldest number that is kept
        self._end = 0  # behind the newest number that was mentioned
        self._ends = deque([0] * (bucket_count - 1), maxlen=bucket_count - 1)  # of the buckets
        self.values = np.zeros(_ROWS_AT_FIRST, np.uint64)
        self.states = np.zeros(_ROWS_AT_FIRST, np.uint8)

    def find(self, numbers: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Where `values` and `states` hold the kept ones of `numbers`, until the next call; and
        which ones are kept."""
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

    def _make_room(self) -> None:
        """Room doubles unless half of it is settled, so a tree is copied only a few times."""
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
