"""Where the sources of a run begin, and whether they can still supply what a stored position needs.

The driver looks up names and beginnings once and hands the result to every slot. If each slot
listed a directory itself and a file appeared in between, the slots would number the splits
differently: a file would be read twice or never. A log that is read from its newest record on would
begin elsewhere in each slot, and again elsewhere after a failure before the first checkpoint.

A position is an index into a sequence of splits. When a file vanishes, all later ones move up, and
the position would silently mean other records. So a position is stored with the names and versions
of the splits that were read, and they are compared before a run is restored. A split that was read
completely may be gone: only its name is compared. Source: Flink's `SourceSplit.splitId`, which
restores by name.
"""

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from pipelines.connectors.source import GrowingSource, Source, VersionedSplits
from pipelines.connectors.split_progress import (
    NamedPositions,
    SeenSplit,
    SplitPositions,
    SplitProgress,
)
from pipelines.domain.errors import (
    UNDECODABLE,
    InputLost,
    InvariantViolated,
    ProtocolError,
    Rejected,
    Retryable,
)
from pipelines.domain.ids import Uid

Listings = Mapping[str, Sequence[str]]
"""Maps each directory and suffix to the names found there."""

_LISTED: ContextVar[dict[str, list[str]] | None] = ContextVar("listed", default=None)


class Beginning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`splits`: for each source, the splits that existed and where to begin with each."""

    directories: dict[str, list[str]] = {}
    splits: dict[Uid, list[SplitProgress]] = {}

    def packed(self) -> bytes:
        """Compressed, because file names resemble each other and there may be a million of them."""
        return zlib.compress(msgspec.json.encode(self))

    @classmethod
    def unpacked(cls, packed: bytes) -> "Beginning":
        """Raises ProtocolError if `packed` made something else."""
        if not packed:
            return cls()
        try:
            return msgspec.json.decode(zlib.decompress(packed), type=cls)
        except (zlib.error, InvariantViolated, *UNDECODABLE) as error:
            raise ProtocolError(f"what the sources begin with cannot be read: {error}") from error


@contextmanager
def listing_once(known: Listings) -> Iterator[dict[str, list[str]]]:
    """Within this context a directory has the names in `known`, or else those of its first listing.

    Yields all listings, to be passed as `known` the next time.
    """
    listed = {place: list(names) for place, names in known.items()}
    token = _LISTED.set(listed)
    try:
        yield listed
    finally:
        _LISTED.reset(token)


def listed_once(directory: str, suffix: str, look: Callable[[], list[str]]) -> list[str]:
    """Returns the names in `directory`, spelled as the author spelled it; see `listing_once`."""
    listed = _LISTED.get()
    if listed is None:
        return look()
    place = f"{directory}/*{suffix}"
    if place not in listed:
        listed[place] = look()
    return listed[place]


SPLITS_AHEAD_MAX = 1_000
"""How many unread splits are checked; a source may have no last split."""


class SplitMemory:
    """The splits that one subtask has opened, as they were then; used by its thread only."""

    def __init__(self, source: Source, restored: Sequence[SplitPositions]) -> None:
        self._source = source
        self._seen = {split.index: split for position in restored for split in position.seen}

    def on_opened(self, index: int, offset: int, still_open: Collection[int] = ()) -> None:
        """Splits open in ascending order, so earlier ones that are not `still_open` are finished.

        If the split is opened at an offset above 0, keeps what was known when it was begun.
        """
        if offset == 0 or index not in self._seen:
            name = self._source.split_id(index) or ""
            self._seen[index] = SeenSplit(index, name, _version(self._source, index))
        first = min(index, *still_open, index)
        self._seen = {split: seen for split, seen in self._seen.items() if split >= first}

    def beside(self, positions: SplitPositions) -> SplitPositions:
        """Adds the begun splits and the last one, which shows if the splits before it moved."""
        begun = {split for split, offset in positions.backlog if offset}
        wanted = sorted(self._seen.keys() & (begun | {max(self._seen, default=-1)}))
        return msgspec.structs.replace(positions, seen=tuple(self._seen[i] for i in wanted))


def problems_of(
    uid: Uid, source: Source, positions: Sequence[SplitPositions], *, ahead: bool
) -> list[str]:
    """Returns a sentence for each split that cannot be read further; `ahead`: also unread ones."""
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
    """Returns a sentence for each split that cannot be read further.

    With `ahead`, also says if the source does not answer.
    """
    every = [split for position in positions for split in position.splits]
    problems: list[str] = []
    for split in (split for split in every if not split.is_finished):
        try:
            check_still_there(source, split)
        except Rejected as refusal:
            problems.append(f"The source {uid!r} cannot go back: {refusal}")
        except Retryable as error:
            # An unreachable source is no reason to refuse a point: the reader asks again later.
            return (
                [*problems, f"The source {uid!r} cannot be asked: {error}"] if ahead else problems
            )
    return problems


def check_still_there(source: GrowingSource, split: SplitProgress) -> None:
    """Raises Rejected naming the range that is gone, or Retryable."""
    oldest = source.oldest(split)
    if oldest > split.offset:
        raise InputLost(source.range_gone(split, oldest))


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
            yield f"The source {uid!r} cannot continue: {refusal}"


def _unread(source: Source, positions: Sequence[SplitPositions]) -> list[int]:
    backlog = [split for position in positions for split, offset in position.backlog if not offset]
    frontier = min((position.frontier for position in positions), default=0)
    later = range(frontier, frontier + SPLITS_AHEAD_MAX)
    return [index for index in (*backlog, *later) if source.split_id(index) is not None]


def _version(source: Source, index: int) -> str | None:
    return source.split_version(index) if isinstance(source, VersionedSplits) else None
