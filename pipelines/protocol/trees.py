"""Names of the trees that acking follows, and what is kept of those that are still followed.

A tree is all that descends from one record of a spout (a source, in this mode), in one try. Its
id says which spout, and the how manieth tree of it: a spout numbers its trees without a gap, so
that what is kept of them lies in arrays, and a whole message is looked up at once. Only the ids of
edges have to be unpredictable, see `protocol.acking`.

Pure. Source: Storm, `MessageId` (whose root ids are drawn at random) and `RotatingMap`.
"""

from collections import deque
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipelines.domain.errors import check

Ids: TypeAlias = npt.NDArray[np.uint64]
"""Of trees or of edges."""

Numbers: TypeAlias = npt.NDArray[np.int64]
"""The how manieth tree of its spout."""

SPOUTS_MAX = 1 << 16
SETTLED = 1 << 7
"""The state of a tree that was acked, failed or given up: whatever else is said of it is late."""

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
    """Which of so many ackers follows each tree; all subtasks agree on it."""
    return numbers_of(trees) % acker_count


class RotatingTrees:
    """A value and a state for every recent tree of one spout; both begin as 0.

    Guarantee: a tree is kept from its first mention through `bucket_count - 1` rotations, or until
    it and all before it are settled. So it grows old between that many rotations and one more.
    Needs trees to be mentioned about in order; one that is skipped has the age of the next one.
    """

    def __init__(self, bucket_count: int) -> None:
        check(bucket_count >= 2, "a tree outlives a rotation", bucket_count=bucket_count)
        self.base = 0  # the oldest number that is kept
        self._end = 0  # behind the newest number that was mentioned
        self._ends = deque([0] * (bucket_count - 1), maxlen=bucket_count - 1)  # of the buckets
        self.values = np.zeros(_ROWS_AT_FIRST, np.uint64)
        self.states = np.zeros(_ROWS_AT_FIRST, np.uint8)

    def find(self, numbers: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Where in `values` and `states` those are that are kept, until the next call; and which
        of `numbers` that is."""
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
        """Room doubles unless half of it is settled, so a tree is copied a few times at most."""
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
        """At the front; the room stays as it is."""
        if not count:
            return
        self.base += count
        self.values, self.states = self.values[count:], self.states[count:]
        self._grow(count)
