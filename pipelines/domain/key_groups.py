"""Decides which subtask owns a key or gets an element of an operator state, at any parallelism.

Keys hash into a fixed number of groups, and a subtask owns a contiguous range of groups. A snapshot
is divided by group, so a restore at another parallelism only gives groups to other owners. The
elements of an operator state are divided by how many each old subtask held, not by their contents.

Source: Flink, `KeyGroupRangeAssignment` (ranges and owners; the hash is ours, see `state.hashing`)
and `RoundRobinOperatorStateRepartitioner`; here the elements of all subtasks are dealt as one deck.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

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


class Redistribution(StrEnum):
    """How an operator state is divided; also its kind in a manifest."""

    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class Taken:
    """The elements taken from one old subtask: the one at `first`, and every `step`-th after it."""

    old_subtask: int
    first: int = 0
    step: int = 1


def taken_by(
    subtask: int, parallelism: int, kind: Redistribution, held: Sequence[int]
) -> list[Taken]:
    """Returns what the subtask takes; `held` are the counts of all old subtasks, in order.

    Exactly one subtask takes each element of a split list. If the parallelism has not changed, it
    is the one that had it.
    """
    check(0 <= subtask < parallelism, "a subtask is one of its operator's", subtask=subtask)
    if not held:
        return []
    match kind:
        case Redistribution.UNION:
            return [Taken(old) for old in range(len(held))]
        case Redistribution.BROADCAST:
            return [Taken(subtask % len(held))]
        case Redistribution.SPLIT if len(held) == parallelism:
            return [Taken(subtask)]
        case Redistribution.SPLIT:
            starts = [sum(held[:old]) for old in range(len(held))]
            return [
                Taken(old, (subtask - start) % parallelism, parallelism)
                for old, start in enumerate(starts)
            ]
