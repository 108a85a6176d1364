"""How far named splits have been read, and how they are dealt again.

The splits of a growing source have no numbers on which all subtasks could agree, so positions name
them. Each subtask keeps the splits that it owns, in the order in which it found them. A split that
was read to the end stays, so that it is not read again. Pure.

Source: Flink's `SourceSplit.splitId` and `ContinuousFileSplitEnumerator`.
"""

from collections.abc import Callable, Iterable

import msgspec

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


class NamedPositions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The splits that one subtask owns, in the order in which they were found.

    `has_looked`: the subtask has looked for splits, so splits that it does not know came later.
    """

    splits: tuple[SplitProgress, ...]
    has_looked: bool

    def __post_init__(self) -> None:
        names = [split.name for split in self.splits]
        check(len(set(names)) == len(names), "a split is named once", names=names)

    def to_json(self) -> Json:
        return msgspec.to_builtins(self)

    @classmethod
    def from_json(cls, stored: Json) -> "NamedPositions":
        """Raises msgspec.ValidationError: these are not positions."""
        return msgspec.convert(stored, cls)


def owned(
    old: Iterable[NamedPositions], owner: Callable[[str], int], subtask: int
) -> tuple[SplitProgress, ...]:
    """The share of one new subtask, given the positions of all old ones, in any order."""
    every = [split for positions in old for split in positions.splits]
    names = [split.name for split in every]
    check(len(set(names)) == len(names), "a split has one owner", names=names)
    return tuple(split for split in every if owner(split.name) == subtask)
