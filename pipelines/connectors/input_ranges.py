"""The input between two cuts of a source: which offsets of which splits were read.

Pure arithmetic over the positions in snapshots, of numbered splits (`positions`) or named ones
(`split_progress`), of all subtasks, at any parallelism before and after. Other kinds of positions
have no ranges.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pipelines.connectors.positions import SplitPositions
from pipelines.connectors.split_packs import Pack
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.domain.ledger import SplitRange
from pipelines.domain.snapshots import Json

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
