"""Decides which subtask owns a key, at any parallelism.

Keys hash into a fixed number of groups, and a subtask owns a contiguous range of groups. A snapshot
is divided by group, so a restore at another parallelism only gives groups to other owners.

Source: Flink, `KeyGroupRangeAssignment` (ranges and owners; the hash is ours, see `state.hashing`).
"""

from dataclasses import dataclass

from pipelines.domain.errors import check

DEFAULT_MAX_PARALLELISM = 128


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """Key groups `first` to `last`, both included."""

    first: int
    last: int

    def __contains__(self, group: int) -> bool:
        return self.first <= group <= self.last

    def overlaps(self, other: "KeyGroupRange") -> bool:
        return self.first <= other.last and other.first <= self.last


def owner_of(group: int, parallelism: int, max_parallelism: int) -> int:
    return group * parallelism // max_parallelism


def range_of(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    check(0 <= subtask < parallelism <= max_parallelism, "a subtask has a range of groups")
    first = -(-subtask * max_parallelism // parallelism)
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(first, last)
