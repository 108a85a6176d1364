"""How far named splits have been read, and how they are dealt again.

The splits of a growing source have no numbers on which all subtasks could agree, so positions name
them. Each subtask keeps the splits that it owns, in the order in which it found them. A split that
was read to the end stays, so that it is not read again. Pure.

Source: Flink's `SourceSplit.splitId` and `ContinuousFileSplitEnumerator`.

The input between two cuts of a source: which offsets of which splits were read.

Pure arithmetic over the positions in snapshots, of numbered splits (`positions`) or named ones
(`split_progress`), of all subtasks, at any parallelism before and after. Other kinds of positions
have no ranges.

Decides which subtask reads a split that is known by name.

How much several splits together have left to read. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import xxhash

from pipelines.connectors.positions import SplitPositions
from pipelines.connectors.split_packs import Pack, names_in, packs_of
from pipelines.domain.errors import check
from pipelines.domain.ledger import SplitRange
from pipelines.domain.snapshots import Json


class SplitProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One split: the offset to read next, and what was known of it when it was found.

    `passed` counts the records before `offset`, as far as the source reports them. `version` stays
    equal as long as the records do.
    """

    name: str
    offset: int = 0
    passed: int = 0
    end_offset: int | None = None  # exclusive; None: the split has no end, or its own
    version: str | None = None
    is_finished: bool = False

    def __post_init__(self) -> None:
        check(self.offset >= 0 and self.passed >= 0, "positions are not negative", at=self.name)


class NamedPositions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The splits that one subtask owns, in the order in which they were found.

    `has_looked`: the subtask has looked for splits, so splits that it does not know came later.
    `finished` holds the names of further splits that were read to the end, in packs
    (`connectors.split_packs`); an earlier version wrote none.
    """

    splits: tuple[SplitProgress, ...]
    has_looked: bool
    finished: tuple[Pack, ...] = ()

    def __post_init__(self) -> None:
        names = [split.name for split in self.splits]
        check(len(set(names)) == len(names), "a split is named once", names=names)

    def names(self) -> Iterator[str]:
        """Of all splits."""
        yield from (split.name for split in self.splits)
        for pack in self.finished:
            yield from names_in(pack)

    def every(self, known: Collection[Pack] = ()) -> Iterator[SplitProgress]:
        """All splits but those in the packs that are `known`; of what is packed, the name is
        left."""
        yield from self.splits
        for pack in self.finished:
            if pack not in known:
                yield from (SplitProgress(name, is_finished=True) for name in names_in(pack))

    def to_json(self) -> Json:
        return msgspec.to_builtins(self)

    @classmethod
    def from_json(cls, stored: Json) -> "NamedPositions":
        """Raises msgspec.ValidationError: these are not positions."""
        return msgspec.convert(stored, cls)


class OwnedSplits(NamedTuple):
    """The share of one new subtask. `known`: the names of all splits, of all subtasks."""

    splits: list[SplitProgress]
    finished: list[Pack]
    known: set[str]


def owned(old: Iterable[NamedPositions], owner: Callable[[str], int], subtask: int) -> OwnedSplits:
    """From the positions of all old subtasks, in any order. A pack whose names all stay together
    is kept as it is."""
    share = OwnedSplits([], [], set())
    count = 0
    left: list[str] = []  # names of packs that come apart
    for positions in old:
        count += len(positions.splits)
        share.known.update(split.name for split in positions.splits)
        share.splits.extend(split for split in positions.splits if owner(split.name) == subtask)
        for pack in positions.finished:
            names = names_in(pack)
            count += len(names)
            share.known.update(names)
            mine = [name for name in names if owner(name) == subtask]
            if len(mine) == len(names):
                share.finished.append(pack)
            else:
                left += mine
    check(len(share.known) == count, "a split has one owner", splits=count)
    share.finished.extend(packs_of(left))
    return share


Place = int | None
"""The offset to read next; None: everything was read."""


def ranges(before: Sequence[Json], after: Sequence[Json]) -> list[SplitRange]:
    """The ranges of all splits that were read further, in order of their numbers or names."""
    if _are(after, "frontier"):
        return list(_numbered(_numbered_of(before), _numbered_of(after)))
    if _are(after, "splits"):
        return list(_named(*_splits_by_name(before, after)))
    return []


def _are(positions: Sequence[Json], field: str) -> bool:
    return bool(positions) and all(isinstance(p, Mapping) and field in p for p in positions)


def _numbered_of(positions: Sequence[Json]) -> list[SplitPositions]:
    return [SplitPositions.from_json(each) for each in positions]


def _numbered(before: list[SplitPositions], after: list[SplitPositions]) -> Iterator[SplitRange]:
    old, new = _Numbered(before), _Numbered(after)
    for split in sorted(old.open_splits | new.open_splits | set(_between(old, new))):
        yield from _range(str(split), old.place(split), new.place(split))


class _Numbered:
    """How far all subtasks together have read each split."""

    def __init__(self, positions: Iterable[SplitPositions]) -> None:
        self._backlog = {s: offset for each in positions for s, offset in each.backlog}
        self._frontiers = {each.frontier % each.stride: each for each in positions}
        self.first_unread = min((each.frontier for each in positions), default=0)
        self.last_frontier = max((each.frontier for each in positions), default=0)

    @property
    def open_splits(self) -> set[int]:
        return set(self._backlog)

    def place(self, split: int) -> Place:
        if split in self._backlog:
            return self._backlog[split]
        return None if self._is_behind(split) else 0

    def _is_behind(self, split: int) -> bool:
        stride = len(self._frontiers)
        return stride > 0 and split < self._frontiers[split % stride].frontier


def _between(old: _Numbered, new: _Numbered) -> range:
    return range(old.first_unread, new.last_frontier)


def _splits_by_name(
    before: Sequence[Json], after: Sequence[Json]
) -> tuple[dict[str, SplitProgress], dict[str, SplitProgress]]:
    """Without those that both have in the same pack: they were finished before."""
    old, new = ([NamedPositions.from_json(each) for each in cut] for cut in (before, after))
    both = _packs(old) & _packs(new)
    found_old, found_new = (
        {split.name: split for each in cut for split in each.every(both)} for cut in (old, new)
    )
    return found_old, found_new


def _packs(positions: Iterable[NamedPositions]) -> set[Pack]:
    return {pack for each in positions for pack in each.finished}


def _named(old: dict[str, SplitProgress], new: dict[str, SplitProgress]) -> Iterator[SplitRange]:
    for name, split in sorted(new.items()):
        known, end = old.get(name), None if split.is_finished else split.offset
        if known is not None:
            yield from _range(name, None if known.is_finished else known.offset, end)
        elif split.passed or split.is_finished:  # positions do not keep its beginning
            yield SplitRange(split=name, first=None, end=end)


def _range(split: str, first: Place, end: Place) -> Iterator[SplitRange]:
    if first is not None and first != end:
        yield SplitRange(split=split, first=first, end=end)


def owner_by_name(name: str, parallelism: int) -> int:
    """Spreads many names evenly; the same in every process and for ever."""
    return xxhash.xxh64_intdigest(name.encode()) % parallelism


def sum_known(counts: Iterable[int | None]) -> int | None:
    """None if one count is unknown: the others alone would understate how much there is."""
    found = list(counts)
    known = [count for count in found if count is not None]
    return sum(known) if len(known) == len(found) else None
