"""Removes poison records between the splits of a source and its reader, and quarantines them.

Cuts batches at the borders of isolated ranges, and removes poison records from them. It does not
touch a split without suspected records. The quarantined records are prepared and committed with the
cuts. `protocol.repeated_failures` decides which records go into quarantine, and
`connectors.files.quarantine` where they are kept.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipelines.connectors.files.quarantine import quarantined
from pipelines.connectors.json_rows import record_text
from pipelines.connectors.sink import SinkWriter
from pipelines.connectors.source import Batch, LoggedRecords, MalformedRecord, Offsets
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.poison import IsolatedRange, Isolation, PoisonRecord
from pipelines.operators.operator import OperatorContext
from pipelines.protocol.commit import CommitLog, CommitPermit, Prepared
from pipelines.runtime.subtask.sources.split_reading import Taken, taken_of

ReadFrom = Callable[[int], Iterator[Batch]]
"""Returns the batches of one split from an offset on."""


class QuarantineTarget(Protocol):
    """Takes the records that operators must not get."""

    def add_row(self, poison: PoisonRecord, row: pa.RecordBatch) -> None: ...

    def add_text(self, poison: PoisonRecord, text: str) -> None:
        """Adds a record that the source cannot read."""
        ...


@dataclass(slots=True)
class _Suspects:
    """The suspected records of one split."""

    poison: dict[int, PoisonRecord] = field(default_factory=dict)
    ranges: list[IsolatedRange] = field(default_factory=list)


class SplitScreen:
    """Guarantee: every record is either passed on or quarantined. A batch that is passed on lies
    wholly inside or wholly outside each part of an isolated range.

    Needs a reader that moves the position behind each batch, even one without rows, before a cut.
    """

    def __init__(
        self, source: Uid, schema: pa.Schema, isolation: Isolation, kept: QuarantineTarget
    ) -> None:
        """`schema` is the schema of the source."""
        self._no_rows = pa.RecordBatch.from_pylist([], schema=schema)
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
        """Reads a split. Calls `on_taken_out` for each record that it quarantines."""
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
        for batch in self._readable(suspects, offset, read, on_taken_out):
            taken, first = taken_of(batch), offset
            offset = taken.end_from(first)
            offsets = _offsets(taken, first)
            borders = _borders(suspects, offsets)
            if not borders:
                yield batch
                continue
            for start, end in pairwise(sorted({0, *borders, len(offsets)})):
                poison = suspects.poison.get(int(offsets[start]))
                rows = taken.records.slice(start, end - start)
                if poison is None:
                    # It ends behind its last record, so that its origin is exact.
                    yield LoggedRecords(rows, offsets[start:end])
                else:
                    self._kept.add_row(poison, rows)
                    on_taken_out()
                    yield self._passed(int(offsets[start]) + 1)
            yield self._passed(offset)

    def _readable(
        self,
        suspects: _Suspects,
        offset: int,
        read: ReadFrom,
        on_taken_out: Callable[[], object],
    ) -> Iterator[Batch]:
        """Continues behind each poison record that the source cannot read.

        Raises MalformedRecord for any other record that the source cannot read.
        """
        batches = read(offset)
        while True:
            try:
                batch = next(batches, None)
            except MalformedRecord as error:
                poison = suspects.poison.get(error.offset)
                if poison is None:
                    raise
                self._kept.add_text(poison, error.text)
                on_taken_out()
                yield self._passed(error.offset + 1)
                batches = read(error.offset + 1)
                continue
            if batch is None:
                return
            yield batch

    def _passed(self, end: int) -> LoggedRecords:
        """Returns a batch that moves the position to `end` and passes nothing on."""
        return LoggedRecords(self._no_rows, np.array([], np.int64), end)


def _offsets(taken: Taken, first: int) -> Offsets:
    if taken.offsets is not None:
        return taken.offsets
    return np.arange(first, first + taken.records.num_rows, dtype=np.int64)


def _borders(suspects: _Suspects, offsets: Offsets) -> list[int]:
    """Returns the rows at which to cut the batch; none if it is passed on whole."""
    if not len(offsets):
        return []
    first, last = int(offsets[0]), int(offsets[-1])
    wanted = [edge for at in suspects.poison if first <= at <= last for edge in (at, at + 1)]
    for each in suspects.ranges:
        if each.first_offset <= last and each.last_offset >= first:
            wanted += range(each.first_offset, each.last_offset + 1, each.step)
            wanted.append(each.last_offset + 1)
    return [int(row) for row in np.searchsorted(offsets, np.array(wanted, np.int64))]


QUARANTINED_COUNT = "records_quarantined"


class Quarantine:
    """Guarantee: an added record becomes visible once, with the checkpoint whose cut has the
    source's position behind it. Needs a caller that moves the position in the same turn.
    """

    def __init__(
        self, writer: SinkWriter, restored: tuple[Prepared, ...], context: OperatorContext
    ) -> None:
        """Commits the records that the restored point had prepared."""
        self._writer = writer
        self._log = CommitLog(restored)
        self._context = context
        self._commit(self._log.take_restored())

    def add_row(self, poison: PoisonRecord, row: pa.RecordBatch) -> None:
        self._add(poison, record_text(row))

    def add_text(self, poison: PoisonRecord, text: str) -> None:
        """Adds a record that the source cannot read."""
        self._add(poison, text)

    def prepare(self, checkpoint_id: CheckpointId) -> tuple[Prepared, ...]:
        """Raises Retryable."""
        return self._log.on_prepared(checkpoint_id, self._writer.prepare(checkpoint_id))

    def commit(self, permit: CommitPermit) -> None:
        self._commit(self._log.on_completed(permit.checkpoint_id))

    def close(self) -> None:
        self._writer.close()

    def _add(self, poison: PoisonRecord, record: str) -> None:
        self._writer.write(quarantined(poison, record))
        self._context.count("records_replayed" if poison.is_replayed else "records_read", 1)
        self._context.count(QUARANTINED_COUNT, 1)

    def _commit(self, due: tuple[Prepared, ...]) -> None:
        for prepared in due:
            self._writer.commit(prepared.checkpoint_id, list(prepared.committables))
