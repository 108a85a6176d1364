"""Stands between the splits of a source and its reader where poison records are looked for.

Cuts batches at the borders of what is isolated, and takes poison records out of them. A split that
nobody suspects is read as if this were not here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipelines.connectors.source import Batch, LoggedRecords, Offsets
from pipelines.domain.ids import Uid
from pipelines.domain.poison import IsolatedRange, Isolation, PoisonRecord
from pipelines.runtime.subtask.split_reading import Taken, taken_of

ReadFrom = Callable[[int], Iterator[Batch]]
"""The batches of one split from an offset on."""


class Kept(Protocol):
    """Where a record goes that no operator is given."""

    def add_row(self, poison: PoisonRecord, row: pa.RecordBatch) -> None: ...


@dataclass(slots=True)
class _Suspects:
    """Of one split."""

    poison: dict[int, PoisonRecord] = field(default_factory=dict)
    ranges: list[IsolatedRange] = field(default_factory=list)


class SplitScreen:
    """Guarantee: every record is either handed on or quarantined, and a batch that is handed on
    lies wholly inside or outside of each part of an isolated range.

    Needs a reader that moves the position behind each batch, also one without rows, before
    anything is cut.
    """

    def __init__(self, source: Uid, isolation: Isolation, kept: Kept) -> None:
        self._kept = kept
        self._splits: dict[str, _Suspects] = {}
        for poison in isolation.poison:
            if poison.source == source:
                self._of(poison.split).poison[poison.offset] = poison
        for isolated in isolation.ranges:
            if isolated.source == source:
                self._of(isolated.split).ranges.append(isolated)

    def read(
        self, name: str, offset: int, read: ReadFrom, on_taken_out: Callable[[], object]
    ) -> Iterator[Batch]:
        """`on_taken_out` is called for each record that is quarantined."""
        suspects = self._splits.get(name)
        if suspects is None:
            return read(offset)
        return self._screened(suspects, offset, read, on_taken_out)

    def _of(self, split: str) -> _Suspects:
        return self._splits.setdefault(split, _Suspects())

    def _screened(
        self,
        suspects: _Suspects,
        offset: int,
        read: ReadFrom,
        on_taken_out: Callable[[], object],
    ) -> Iterator[Batch]:
        for batch in read(offset):
            taken, first = taken_of(batch), offset
            offset = taken.end_from(first)
            offsets = _offsets(taken, first)
            borders = _borders(suspects, offsets)
            if not borders:
                yield batch
                continue
            nothing = taken.records.slice(0, 0), offsets[:0]
            for start, end in pairwise(sorted({0, *borders, len(offsets)})):
                poison = suspects.poison.get(int(offsets[start]))
                rows = taken.records.slice(start, end - start)
                if poison is None:
                    # It ends behind its last record, so that its origin is exact.
                    yield LoggedRecords(rows, offsets[start:end])
                else:
                    self._kept.add_row(poison, rows)
                    on_taken_out()
                    yield LoggedRecords(*nothing, int(offsets[start]) + 1)
            yield LoggedRecords(*nothing, offset)


def _offsets(taken: Taken, first: int) -> Offsets:
    if taken.offsets is not None:
        return taken.offsets
    return np.arange(first, first + taken.records.num_rows, dtype=np.int64)


def _borders(suspects: _Suspects, offsets: Offsets) -> list[int]:
    """Row numbers at which the batch is to be cut; empty: it is handed on whole."""
    if not len(offsets):
        return []
    first, last = int(offsets[0]), int(offsets[-1])
    wanted = [edge for at in suspects.poison if first <= at <= last for edge in (at, at + 1)]
    for each in suspects.ranges:
        if each.first_offset <= last and each.last_offset >= first:
            wanted += range(each.first_offset, each.last_offset + 1, each.step)
            wanted.append(each.last_offset + 1)
    return [int(row) for row in np.searchsorted(offsets, np.array(wanted, np.int64))]
