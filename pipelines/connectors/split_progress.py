"""How far splits of a source have been read, by number or by name, and how they are dealt again.

Pure. Numbered splits are an ordered, possibly endless sequence 0, 1, 2, ...; an index may lie
behind the last split, which means that nothing is left. The splits of a growing source have no
numbers on which all subtasks could agree, so positions name them. Each subtask keeps the splits
that it owns, in the order in which it found them; a split's owner follows from its name. The
positions of all subtasks at two cuts show which offsets were read in between, at any parallelism
of either.

The positions keep a split that was read to the end, so that it is not read again. A file may appear
late under any name, with any time, and is then read if and only if it was not read before. A
low-water mark of names or times cannot decide that, and digests decide it only almost surely, so
the positions keep the names themselves, packed. Names resemble each other, so they take 3 bytes
each, or 31 if each contains a random UUID. A pack never changes. A checkpoint takes it as it is,
however many names it holds. To compare what two checkpoints read, a pack that both have need not be
unpacked.

Source: Flink's `SourceSplit.splitId`, `ContinuousFileSplitEnumerator` and FLIP-27 enumerator, with
a static assignment instead of requests.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec
import xxhash

from pipelines.domain.errors import InvariantViolated, check
from pipelines.domain.ledger import SplitRange
from pipelines.domain.snapshots import Json

T = TypeVar("T")


def _converted(stored: Json, kind: type[T]) -> T:
    """Raises msgspec.ValidationError, also for positions that no source has."""
    try:
        return msgspec.convert(stored, kind)
    except InvariantViolated as error:
        raise msgspec.ValidationError(str(error)) from error


class SeenSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A split that was read, as it was then; `version` None: the source has no versions."""

    index: int
    name: str
    version: str | None = None


class SplitPositions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The splits that one subtask still has to read: backlog, frontier, frontier + stride, ...

    Splits are opened in ascending order; if one is read at a time, event time ascends with them.
    All splits of the backlog lie before the frontier. `seen` is stored with the positions but takes
    no part in the arithmetic: it is compared with the source before a run is restored there
    (`connectors.positions`).
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
        """The split to read next, which may lie behind the last one, and the offset to begin at."""
        return self.backlog[0] if self.backlog else (self.frontier, 0)

    def opened(self, count: int, has_split: Callable[[int], bool]) -> "SplitPositions":
        """Returns the positions with the first `count` splits in the backlog, or all there are."""
        backlog, frontier = list(self.backlog), self.frontier
        while len(backlog) < count and has_split(frontier):
            backlog.append((frontier, 0))
            frontier += self.stride
        return SplitPositions(tuple(backlog), frontier, self.stride)

    def advanced(self, distance: int, split: int | None = None) -> "SplitPositions":
        """Advances that split, or the current one, by `distance`; gaps between records count."""
        wanted = self.current()[0] if split is None else split
        begun = self if self.backlog else self.opened(1, lambda _: True)
        check(any(s == wanted for s, _ in begun.backlog), "the split is open", split=wanted)
        backlog = [(s, offset + distance * (s == wanted)) for s, offset in begun.backlog]
        return SplitPositions(tuple(backlog), begun.frontier, begun.stride)

    def finished(
        self, has_split: Callable[[int], bool], split: int | None = None
    ) -> "SplitPositions":
        """Finishes that split, or the current one; behind the last split, changes nothing."""
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
        """Raises msgspec.ValidationError if these are not positions."""
        return _converted(stored, cls)


def initial(subtask: int, parallelism: int) -> SplitPositions:
    check(0 <= subtask < parallelism, "a subtask is one of the parallelism", subtask=subtask)
    return SplitPositions((), subtask, parallelism)


def redistribute(old: Sequence[SplitPositions], subtask: int, parallelism: int) -> SplitPositions:
    """Returns the share of one new subtask, given the positions of all old ones, in any order.

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


PACK_NAMES = 1_000
"""How many names become a pack; fewer are kept as they are."""

PACK_BYTES_MAX = 64 << 20
"""Of an unpacked pack; names have at most a few kilobytes."""

Pack: TypeAlias = str
"""A pack is text, so that a snapshot takes it without a copy."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[str])


def pack_of(names: Iterable[str]) -> Pack:
    """Packs the names in sorted order, in which neighbours share most of their text."""
    return b64encode(zlib.compress(_encoder.encode(sorted(names)))).decode()


def packs_of(names: Sequence[str]) -> Iterator[Pack]:
    left = iter(names)
    while some := list(islice(left, PACK_NAMES)):
        yield pack_of(some)


def names_in(pack: Pack) -> list[str]:
    """Raises msgspec.ValidationError if this is no pack."""
    try:
        unpacking = zlib.decompressobj()
        names = unpacking.decompress(b64decode(pack, validate=True), PACK_BYTES_MAX)
        if not unpacking.eof:
            raise ValueError("cut off, or too large")
        return _decoder.decode(names)
    except (ValueError, zlib.error, msgspec.DecodeError) as error:
        raise msgspec.ValidationError(f"the names of finished splits: {error}") from error


class SplitProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One split: the offset to read next, and what was known of it when it was found.

    `passed` counts the records before `offset`, as far as the source reports them. `version` stays
    equal as long as the records do.
    """

    name: str
    offset: int = 0
    passed: int = 0
    end_offset: int | None = None  # exclusive; None: the split is endless, or ends by itself
    version: str | None = None
    is_finished: bool = False

    def __post_init__(self) -> None:
        check(self.offset >= 0 and self.passed >= 0, "positions are not negative", at=self.name)


def ending_as(found: SplitProgress | None, split: SplitProgress) -> SplitProgress:
    """Returns a restored split with the end that the source has in this run.

    `found` is the split as the source finds it when the run starts; None: it was not looked for.
    The point may come from a run whose source had another end. A split without an end gets the one
    that was found, and a split that had one continues behind it if there is none now.
    """
    if found is None or (found.end_offset is None) == (split.end_offset is None):
        return split
    if split.end_offset is not None and split.is_finished:  # its offset is where it was opened
        split = msgspec.structs.replace(split, offset=split.end_offset, is_finished=False)
    return msgspec.structs.replace(split, end_offset=found.end_offset)


class NamedPositions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The splits that one subtask owns, in the order in which they were found.

    `has_looked`: the subtask has looked for splits, so splits that it does not know came later.
    `finished` holds the names of further splits that were read to the end, in packs (`pack_of`); an
    earlier version wrote none.
    """

    splits: tuple[SplitProgress, ...]
    has_looked: bool
    finished: tuple[Pack, ...] = ()

    def __post_init__(self) -> None:
        names = [split.name for split in self.splits]
        check(len(set(names)) == len(names), "a split is named once", names=names)

    def names(self) -> Iterator[str]:
        """Yields the names of all splits."""
        yield from (split.name for split in self.splits)
        for pack in self.finished:
            yield from names_in(pack)

    def every(self, known: Collection[Pack] = ()) -> Iterator[SplitProgress]:
        """Yields all splits except those in `known` packs; a packed split has only its name."""
        yield from self.splits
        for pack in self.finished:
            if pack not in known:
                yield from (SplitProgress(name, is_finished=True) for name in names_in(pack))

    def to_json(self) -> Json:
        return msgspec.to_builtins(self)

    @classmethod
    def from_json(cls, stored: Json) -> "NamedPositions":
        """Raises msgspec.ValidationError if these are not positions."""
        return _converted(stored, cls)


class OwnedSplits(NamedTuple):
    """The share of one new subtask. `known`: the names of all splits, of all subtasks."""

    splits: list[SplitProgress]
    finished: list[Pack]
    known: set[str]


def owned(old: Iterable[NamedPositions], owner: Callable[[str], int], subtask: int) -> OwnedSplits:
    """Returns the share of `subtask`, given the positions of all old subtasks in any order.

    A pack whose names all stay together is kept as it is.
    """
    share = OwnedSplits([], [], set())
    count = 0
    left: list[str] = []  # names from packs that are split up
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
    """Returns the range that was read of each split, in order of their numbers or names."""
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
    """Leaves out splits that both have in the same pack: they were finished before."""
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
        elif split.passed or split.is_finished:  # positions do not record its beginning
            yield SplitRange(split=name, first=None, end=end)


def _range(split: str, first: Place, end: Place) -> Iterator[SplitRange]:
    if first is not None and first != end:
        yield SplitRange(split=split, first=first, end=end)


def owner_by_name(name: str, parallelism: int) -> int:
    """Spreads many names evenly; the same in every process and for ever."""
    return xxhash.xxh64_intdigest(name.encode()) % parallelism


def sum_known(counts: Iterable[int | None]) -> int | None:
    """Returns None if one count is unknown: the others alone would understate the sum."""
    found = list(counts)
    known = [count for count in found if count is not None]
    return sum(known) if len(known) == len(found) else None
