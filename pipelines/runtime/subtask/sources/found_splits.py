"""The splits of one subtask as an ordered sequence: fixed, or growing as new ones are found.

Owns the stored form of a subtask's positions (`connectors.split_progress`): numbers of a sequence
that never changes, or names of splits that were found. Reads no records itself.

A separate thread looks for new splits of a growing source from time to time, so a broker that does
not answer delays no barrier. A look that fails is repeated later. Only the first look has to
succeed, because without it the place to begin is not known.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Protocol

import msgspec

from pipelines.connectors.positions import SplitMemory, check_still_there
from pipelines.connectors.source import (
    Batch,
    BeginsOnce,
    ConcurrentSplits,
    ConfirmsSplits,
    GrowingSource,
    KnowsPending,
    ReportsProgress,
    Source,
)
from pipelines.connectors.split_progress import (
    PACK_NAMES,
    NamedPositions,
    SplitPositions,
    SplitProgress,
    ending_as,
    initial,
    owned,
    pack_of,
    redistribute,
)
from pipelines.domain.clock import Clock
from pipelines.domain.errors import Retryable
from pipelines.domain.snapshots import Json

UNREAD_MAX = 10_000
"""The limit of unfinished splits in the positions; a directory may have a million files."""


class FoundSplits:
    """Guarantee: only the subtask that owns a split reads it, and every split that a checkpoint
    knows keeps its position. All unfinished ones of these are always in the backlog.
    """

    def __init__(
        self,
        *,
        source: GrowingSource,
        restored: Sequence[Json],
        subtask: int,
        parallelism: int,
        clock: Clock,
        beginning: Sequence[SplitProgress] | None = None,
        looking: Executor | None = None,
    ) -> None:
        """`restored`: in the order of the old subtasks. `beginning`: the result of the first look,
        if the driver has already looked for all subtasks."""
        self._source = source
        self._subtask = subtask
        self._parallelism = parallelism
        self._clock = clock
        old = [NamedPositions.from_json(one) for one in restored]
        share = owned(old, self._owner, subtask)
        found = {split.name: split for split in beginning or ()}
        splits = [ending_as(found.get(split.name), split) for split in share.splits]
        self._splits = dict(enumerate(splits))  # by index; without those that are packed
        self._count = len(share.splits)
        self._finished = share.finished
        self._known = share.known
        self._had_looked = [positions.has_looked for positions in old]
        self._beginning = beginning
        # Found, but not in the positions yet: a restored subtask finds them again. If the time of a
        # find matters, or later looks find nothing, all found splits are in the positions instead.
        self._left: deque[SplitProgress] = deque()
        finds_again = self.may_grow and not isinstance(source, BeginsOnce)
        self._unread_max = UNREAD_MAX if finds_again else 1 << 62
        self._unconfirmed: set[int] = set()  # splits that handed out records since `confirm`
        self._reader = source.open()
        self._looking = looking or ThreadPoolExecutor(1, thread_name_prefix="find-splits")
        self._look: Future[list[SplitProgress]] | None = None
        self._looked_ms: float | None = None

    @property
    def concurrency(self) -> int:
        return self._source.concurrent_splits

    @property
    def may_grow(self) -> bool:
        return self._source.discovery_interval_ms is not None

    @property
    def reporter(self) -> ReportsProgress | None:
        return self._reader if isinstance(self._reader, ReportsProgress) else None

    @property
    def pending(self) -> KnowsPending | None:
        return self._reader if isinstance(self._reader, KnowsPending) else None

    def initial(self) -> SplitPositions:
        unfinished = [(i, s.offset) for i, s in self._splits.items() if not s.is_finished]
        return SplitPositions(tuple(unfinished), self._count, 1)

    def grown(self, positions: SplitPositions) -> SplitPositions:
        """Raises Retryable if the first look fails, and Rejected if any look fails for good."""
        found = [split for split in self._found() if split.name not in self._known]
        self._known.update(split.name for split in found)
        self._left.extend(split for split in found if self._owner(split.name) == self._subtask)
        if not self._left or 2 * len(positions.backlog) > self._unread_max:
            return positions
        free = self._unread_max - len(positions.backlog)
        mine = [self._left.popleft() for _ in range(min(free, len(self._left)))]
        new = dict(enumerate(mine, self._count))
        self._splits.update(new)
        self._count += len(new)
        added = tuple((index, split.offset) for index, split in new.items())
        return SplitPositions((*positions.backlog, *added), self._count, 1)

    def name_of(self, index: int) -> str | None:
        """Returns None for a packed split: it is finished, and its name is not needed again."""
        return self._splits[index].name if index in self._splits else None

    def read(self, index: int, offset: int, still_open: Collection[int]) -> Iterator[Batch]:
        split = msgspec.structs.replace(self._splits[index], offset=offset)
        check_still_there(self._source, split)
        return iter(self._reader.read(split))

    def on_handed_out(self, index: int, records: int, version: str | None = None) -> None:
        split = self._splits[index]
        self._splits[index] = msgspec.structs.replace(
            split, passed=split.passed + records, version=version or split.version
        )
        self._unconfirmed.add(index)

    def confirm(self, positions: SplitPositions) -> None:
        """Raises Rejected if a split that has handed out records is now a different one."""
        if not isinstance(self._reader, ConfirmsSplits):
            return
        begun = sorted({*dict(positions.backlog), *self._unconfirmed})
        versions = self._reader.confirmed([self._splits[index] for index in begun]) if begun else {}
        for index in begun:
            split = self._splits[index]
            if split.name in versions:
                self._unconfirmed.discard(index)
                self._splits[index] = msgspec.structs.replace(split, version=versions[split.name])

    def to_json(self, positions: SplitPositions) -> Json:
        offsets = dict(positions.backlog)
        self._pack_finished(offsets)
        return NamedPositions(
            tuple(
                msgspec.structs.replace(
                    split, offset=offsets.get(i, split.offset), is_finished=i not in offsets
                )
                for i, split in self._splits.items()
            ),
            has_looked=self._looked_ms is not None or not self._begins,
            finished=tuple(self._finished),
        ).to_json()

    def close(self) -> None:
        self._looking.shutdown(wait=False, cancel_futures=True)
        self._reader.close()

    def _pack_finished(self, unfinished: Collection[int]) -> None:
        """Packs finished splits, only in whole packs, and none whose end the source has to know."""
        done = [i for i, s in self._splits.items() if i not in unfinished and s.end_offset is None]
        for start in range(0, len(done) - PACK_NAMES + 1, PACK_NAMES):
            full = done[start : start + PACK_NAMES]
            self._finished.append(pack_of(self._splits.pop(index).name for index in full))
            self._unconfirmed.difference_update(full)

    def _owner(self, name: str) -> int:
        return self._source.owner(name, self._parallelism)

    def _found(self) -> list[SplitProgress]:
        if self._looked_ms is None:
            return self._look_first()
        if self._look is not None and self._look.done():
            look, self._look = self._look, None
            return _answer(look)
        self._look_again_if_due(self._looked_ms)
        return []

    @property
    def _begins(self) -> bool:
        """True if some subtask had not looked yet: its splits do not count as later finds."""
        return not (self._had_looked and all(self._had_looked))

    def _look_first(self) -> list[SplitProgress]:
        """Finds the first splits. Those that no subtask has looked for begin where the author said.
        Others came later: they are read from their beginning, or not at all if the source is
        bounded."""
        known = frozenset(self._known)
        found = self._first_ones(known) if self._begins else []
        if any(self._had_looked):
            came_later = {split.name for split in found if self._was_looked_for(split.name)}
            found = [split for split in found if split.name not in came_later]
            found += self._source.find(known | {split.name for split in found}, is_start=False)
        self._looked_ms = self._clock.monotonic_ms()
        return found

    def _first_ones(self, known: Collection[str]) -> list[SplitProgress]:
        if self._beginning is None:
            return self._source.find(known, is_start=True)
        return [split for split in self._beginning if split.name not in known]

    def _was_looked_for(self, name: str) -> bool:
        """Returns True if the subtask that owned the split then had looked."""
        return self._had_looked[self._source.owner(name, len(self._had_looked))]

    def _look_again_if_due(self, looked_ms: float) -> None:
        interval_ms, now_ms = self._source.discovery_interval_ms, self._clock.monotonic_ms()
        if interval_ms is None or self._look is not None or now_ms - looked_ms < interval_ms:
            return
        self._looked_ms = now_ms
        known = frozenset(self._known)
        self._look = self._looking.submit(self._source.find, known, is_start=False)


def _answer(look: Future[list[SplitProgress]]) -> list[SplitProgress]:
    try:
        return look.result()
    except Retryable:
        return []  # reading of known splits continues, and the next look may succeed


class SplitSequence(Protocol):
    """The splits of one subtask in one attempt, numbered from 0 on."""

    @property
    def concurrency(self) -> int:
        """How many splits are read side by side."""
        ...

    @property
    def may_grow(self) -> bool: ...

    @property
    def reporter(self) -> ReportsProgress | None:
        """The part of the source that reports completed checkpoints to others."""
        ...

    @property
    def pending(self) -> KnowsPending | None:
        """The part of the source that knows how much there is to read."""
        ...

    def initial(self) -> SplitPositions:
        """Returns the positions where this subtask begins to read."""
        ...

    def grown(self, positions: SplitPositions) -> SplitPositions:
        """Adds the splits that were found since the last call."""
        ...

    def name_of(self, index: int) -> str | None:
        """Returns None if there is no such split, at least not yet."""
        ...

    def read(self, index: int, offset: int, still_open: Collection[int]) -> Iterator[Batch]: ...

    def on_handed_out(self, index: int, records: int, version: str | None = None) -> None: ...

    def confirm(self, positions: SplitPositions) -> None:
        """Call at a cut. Raises Rejected unless the found splits are the ones read so far."""
        ...

    def to_json(self, positions: SplitPositions) -> Json: ...

    def close(self) -> None: ...


class FixedSplits:
    """The splits of a `Source`: dealt by number, and remembered by name (`SplitMemory`)."""

    may_grow = False
    reporter = None
    pending = None

    def __init__(
        self, source: Source, restored: Sequence[Json], subtask: int, parallelism: int
    ) -> None:
        self._source = source
        self.concurrency = source.concurrent_splits if isinstance(source, ConcurrentSplits) else 1
        self._initial = deal(restored, subtask, parallelism)
        self._memory = SplitMemory(source, [SplitPositions.from_json(one) for one in restored])

    def initial(self) -> SplitPositions:
        return self._initial

    def grown(self, positions: SplitPositions) -> SplitPositions:
        return positions

    def name_of(self, index: int) -> str | None:
        return self._source.split_id(index)

    def read(self, index: int, offset: int, still_open: Collection[int]) -> Iterator[Batch]:
        self._memory.on_opened(index, offset, still_open)
        return iter(self._source.read(index, offset))

    def on_handed_out(self, index: int, records: int, version: str | None = None) -> None:
        pass  # the position already has it

    def confirm(self, positions: SplitPositions) -> None:
        pass  # if a run goes back to a file that was begun, the file is compared then

    def to_json(self, positions: SplitPositions) -> Json:
        return self._memory.beside(positions).to_json()

    def close(self) -> None:
        pass  # files are closed with their iterators


def deal(restored: Sequence[Json], subtask: int, parallelism: int) -> SplitPositions:
    if not restored:
        return initial(subtask, parallelism)
    old = [SplitPositions.from_json(position) for position in restored]
    return redistribute(old, subtask, parallelism)
