"""The splits of one subtask as an ordered sequence, which is fixed or grows.

Owns what is stored as a subtask's positions: numbers of a sequence that never changes
(`connectors.positions`), or names of splits that were found (`connectors.split_progress`). Reads
no records itself.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from pipelines.connectors.positions import SplitPositions, initial, redistribute
from pipelines.connectors.reachability import SplitMemory
from pipelines.connectors.source import (
    Batch,
    ConcurrentSplits,
    KnowsPending,
    Source,
    TellsProgress,
)
from pipelines.domain.snapshots import Json


class SplitSequence(Protocol):
    """Splits are numbered from 0 on, for one subtask and one attempt."""

    @property
    def concurrency(self) -> int:
        """How many splits are read side by side."""
        ...

    @property
    def may_grow(self) -> bool: ...

    @property
    def told_to(self) -> TellsProgress | None:
        """The part of the source that reports completed checkpoints to others."""
        ...

    @property
    def pending(self) -> KnowsPending | None:
        """The part of the source that knows how much there is to read."""
        ...

    def initial(self) -> SplitPositions:
        """Where this subtask begins to read."""
        ...

    def grown(self, positions: SplitPositions) -> SplitPositions:
        """Adds the splits that were found since the last call."""
        ...

    def name_of(self, index: int) -> str | None:
        """None: there is no such split, at least not yet."""
        ...

    def read(self, index: int, offset: int, still_open: Collection[int]) -> Iterator[Batch]: ...

    def on_handed_out(self, index: int, records: int, version: str | None = None) -> None: ...

    def confirm(self, positions: SplitPositions) -> None:
        """At a cut, checks that the found splits are the ones read so far. Raises Rejected."""
        ...

    def to_json(self, positions: SplitPositions) -> Json: ...

    def close(self) -> None: ...


class FixedSplits:
    """The splits of a `Source`: dealt by number, and remembered by name (`SplitMemory`)."""

    may_grow = False
    told_to = None
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
        pass  # a file that was begun is compared if a run goes back to it

    def to_json(self, positions: SplitPositions) -> Json:
        return self._memory.beside(positions).to_json()

    def close(self) -> None:
        pass  # files are closed with their iterators


def deal(restored: Sequence[Json], subtask: int, parallelism: int) -> SplitPositions:
    if not restored:
        return initial(subtask, parallelism)
    old = [SplitPositions.from_json(position) for position in restored]
    return redistribute(old, subtask, parallelism)
