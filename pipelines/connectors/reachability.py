"""Decides whether a source can still supply what a stored position needs.

A position is an index into a sequence of splits. When a file vanishes, all later ones move up, and
the position would silently mean other records. So the names and versions of splits that were read
are stored with it and compared before a run is restored. A split that was read completely may be
gone: only its name is compared. Source: Flink's `SourceSplit.splitId`, which restores by name.
"""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from pipelines.connectors.source import GrowingSource, Source, VersionedSplits
from pipelines.connectors.split_progress import (
    NamedPositions,
    SeenSplit,
    SplitPositions,
    SplitProgress,
)
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import Uid

SPLITS_AHEAD_MAX = 1_000
"""How many unread splits are checked; a source may have no last split."""


class SplitMemory:
    """The splits that one subtask has opened, as they were; used by the subtask's thread only."""

    def __init__(self, source: Source, restored: Sequence[SplitPositions]) -> None:
        self._source = source
        self._seen = {split.index: split for position in restored for split in position.seen}

    def on_opened(self, index: int, offset: int, still_open: Collection[int] = ()) -> None:
        """Splits are opened in ascending order, so earlier ones that are not still open are read.

        If the split is opened at an offset, keeps what was known when it was begun.
        """
        if offset == 0 or index not in self._seen:
            name = self._source.split_id(index) or ""
            self._seen[index] = SeenSplit(index, name, _version(self._source, index))
        first = min(index, *still_open, index)
        self._seen = {split: seen for split, seen in self._seen.items() if split >= first}

    def beside(self, positions: SplitPositions) -> SplitPositions:
        """Adds the begun splits, and the last one, which shows whether those before it moved."""
        begun = {split for split, offset in positions.backlog if offset}
        wanted = sorted(self._seen.keys() & (begun | {max(self._seen, default=-1)}))
        return msgspec.structs.replace(positions, seen=tuple(self._seen[i] for i in wanted))


def problems_of(
    uid: Uid, source: Source, positions: Sequence[SplitPositions], *, ahead: bool
) -> list[str]:
    """One sentence for each split that cannot be read on; with `ahead` also unread splits."""
    begun = {split for position in positions for split, offset in position.backlog if offset}
    seen = {split.index: split for position in positions for split in position.seen}
    moved = [*_moved(uid, source, [seen[index] for index in sorted(seen)])]
    if moved:
        return moved[:1]  # the later ones have moved for the same reason
    changed = _changed(uid, source, [seen[index] for index in sorted(begun & seen.keys())])
    return [*changed, *(_gone(uid, source, _unread(source, positions)) if ahead else ())]


def named_problems_of(
    uid: Uid, source: GrowingSource, positions: Sequence[NamedPositions], *, ahead: bool
) -> list[str]:
    """One sentence for each split that cannot be read on; with `ahead` also if no answer comes."""
    every = [split for position in positions for split in position.splits]
    problems: list[str] = []
    for split in (split for split in every if not split.is_finished):
        try:
            check_still_there(source, split)
        except Rejected as refusal:
            problems.append(f"The source {uid!r} cannot go back: {refusal}")
        except Retryable as error:
            # A point is not refused because the source is away now: the reader asks again later.
            return (
                [*problems, f"The source {uid!r} cannot be asked: {error}"] if ahead else problems
            )
    return problems


def check_still_there(source: GrowingSource, split: SplitProgress) -> None:
    """Raises Rejected naming the range that is gone, or Retryable."""
    oldest = source.oldest(split)
    if oldest > split.offset:
        raise Rejected(source.range_gone(split, oldest))


def _moved(uid: Uid, source: Source, seen: Sequence[SeenSplit]) -> Iterator[str]:
    for split in seen:
        name = source.split_id(split.index)
        if name != split.name:
            now = f"is {name!r} now" if name else "is not there any more"
            yield (
                f"The source {uid!r} cannot go back: its split {split.index} was {split.name!r} and"
                f" {now}, so splits have vanished or were added before it."
            )


def _changed(uid: Uid, source: Source, begun: Sequence[SeenSplit]) -> Iterator[str]:
    for split in begun:
        if split.version is None or not isinstance(source, VersionedSplits):
            continue
        try:
            is_same = source.split_version(split.index) == split.version
        except Rejected as refusal:
            yield f"The source {uid!r} cannot go back: {refusal}"
            continue
        if not is_same:
            yield (
                f"The source {uid!r} cannot go back: its split {split.name!r} has changed since"
                " it was read."
            )


def _gone(uid: Uid, source: Source, unread: Sequence[int]) -> Iterator[str]:
    for index in unread:
        try:
            _version(source, index)
        except Rejected as refusal:
            yield f"The source {uid!r} cannot go on: {refusal}"


def _unread(source: Source, positions: Sequence[SplitPositions]) -> list[int]:
    backlog = [split for position in positions for split, offset in position.backlog if not offset]
    frontier = min((position.frontier for position in positions), default=0)
    later = range(frontier, frontier + SPLITS_AHEAD_MAX)
    return [index for index in (*backlog, *later) if source.split_id(index) is not None]


def _version(source: Source, index: int) -> str | None:
    return source.split_version(index) if isinstance(source, VersionedSplits) else None
