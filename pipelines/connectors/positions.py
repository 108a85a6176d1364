"""Which splits a subtask has still to read, and how the rest is dealt at another parallelism.

Pure arithmetic over an ordered, possibly endless sequence of splits 0, 1, 2, ... Knows no source:
an index may lie behind the last split, which means that nothing is left. Source: Flink's
FLIP-27 enumerator, with a static assignment instead of requests.
"""

from collections.abc import Callable, Sequence

import msgspec

from pipelines.domain.errors import check
from pipelines.domain.snapshots import Json


class SeenSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A split that was read, as it was then; `version` None: the source has no versions."""

    index: int
    name: str
    version: str | None = None


class SplitPositions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one subtask has still to read: `backlog`, then frontier, frontier + stride, and so on.

    Splits are opened in ascending order; if one is read at a time, event time ascends with them.
    All splits of the backlog lie before the frontier. `seen` is stored with the positions but is no
    part of the arithmetic: before a run is restored there, it is compared with the source
    (`connectors.reachability`).
    """

    backlog: tuple[tuple[int, int], ...]  # (split, offset next to read)
    frontier: int
    stride: int
    seen: tuple[SeenSplit, ...] = ()

    def __post_init__(self) -> None:
        splits = [split for split, _ in self.backlog]
        check(splits == sorted(set(splits)), "a backlog ascends", backlog=self.backlog)
        check(not splits or splits[-1] < self.frontier, "the frontier lies behind the backlog")
        check(self.stride > 0, "splits are dealt to at least one subtask", stride=self.stride)
        lowest = min([0, *splits, *(offset for _, offset in self.backlog)])
        check(lowest >= 0 and self.frontier >= 0, "positions are not negative", at=self)

    def current(self) -> tuple[int, int]:
        """The split to read next, and from which record on; it may lie behind the last split."""
        return self.backlog[0] if self.backlog else (self.frontier, 0)

    def opened(self, count: int, has_split: Callable[[int], bool]) -> "SplitPositions":
        """With the first `count` splits in the backlog, or all if there are fewer."""
        backlog, frontier = list(self.backlog), self.frontier
        while len(backlog) < count and has_split(frontier):
            backlog.append((frontier, 0))
            frontier += self.stride
        return SplitPositions(tuple(backlog), frontier, self.stride)

    def advanced(self, distance: int, split: int | None = None) -> "SplitPositions":
        """`distance` further in that split or in the current one; gaps between records count."""
        wanted = self.current()[0] if split is None else split
        begun = self if self.backlog else self.opened(1, lambda _: True)
        check(any(s == wanted for s, _ in begun.backlog), "the split is open", split=wanted)
        backlog = [(s, offset + distance * (s == wanted)) for s, offset in begun.backlog]
        return SplitPositions(tuple(backlog), begun.frontier, begun.stride)

    def finished(
        self, has_split: Callable[[int], bool], split: int | None = None
    ) -> "SplitPositions":
        """After the last record of that split, or the current one; stays behind the last split."""
        wanted = self.current()[0] if split is None else split
        if not has_split(wanted):
            return self
        begun = self if self.backlog else self.opened(1, has_split)
        backlog = tuple(entry for entry in begun.backlog if entry[0] != wanted)
        return SplitPositions(backlog, begun.frontier, begun.stride)

    def to_json(self) -> Json:
        return msgspec.to_builtins(self)

    @classmethod
    def from_json(cls, stored: Json) -> "SplitPositions":
        """Raises msgspec.ValidationError: these are not positions."""
        return msgspec.convert(stored, cls)


def initial(subtask: int, parallelism: int) -> SplitPositions:
    check(0 <= subtask < parallelism, "a subtask is one of the parallelism", subtask=subtask)
    return SplitPositions((), subtask, parallelism)


def redistribute(old: Sequence[SplitPositions], subtask: int, parallelism: int) -> SplitPositions:
    """The share of one new subtask, given the positions of all old ones, in any order.

    1. The new frontier is the furthest old one: no subtask has read anything from there on.
    2. Splits before it that an old subtask had not reached become backlog, at offset 0.
    3. The whole backlog, in order, and the splits from the frontier on are dealt in turn.
    """
    check(0 <= subtask < parallelism, "a subtask is one of the parallelism", subtask=subtask)
    _check_complete(old)
    frontier = max(position.frontier for position in old)
    backlog = sorted(entry for position in old for entry in _unread_before(position, frontier))
    return SplitPositions(tuple(backlog[subtask::parallelism]), frontier + subtask, parallelism)


def _unread_before(position: SplitPositions, frontier: int) -> list[tuple[int, int]]:
    behind = range(position.frontier, frontier, position.stride)
    return [*position.backlog, *((split, 0) for split in behind)]


def _check_complete(old: Sequence[SplitPositions]) -> None:
    """If a subtask's positions were missing, no subtask would read its splits."""
    strides = {position.stride for position in old}
    residues = {position.frontier % position.stride for position in old}
    check(
        strides == {len(old)} and residues == set(range(len(old))),
        "the positions of all old subtasks are at hand, each once",
        strides=sorted(strides),
        residues=sorted(residues),
    )
