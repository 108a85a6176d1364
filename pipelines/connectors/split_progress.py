"""How far named splits have been read, and how they are dealt again.

The splits of a growing source have no numbers on which all subtasks could agree, so positions name
them. Each subtask keeps the splits that it owns, in the order in which it found them. A split that
was read to the end stays, so that it is not read again. Pure.

Source: Flink's `SourceSplit.splitId` and `ContinuousFileSplitEnumerator`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from pipelines.connectors.split_packs import Pack, names_in, packs_of
from pipelines.domain.errors import check
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
