"""Sinks for a person who tries a pipeline: rows kept in this process, or printed.

`Collect` works in one process only (`pipelines.local`); a run elsewhere refuses it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from pipelines.connectors.sink import Segment, SinkContext, Superseded, newest_of
from pipelines.domain.errors import ProtocolError
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.snapshots import Json

Marker = tuple[str, int, int]
"""Run, checkpoint and subtask."""


@dataclass(frozen=True, slots=True)
class Collect:
    """Guarantee: holds the rows of each completed checkpoint of this run once, after any restart.

    Needs a run in this process. Keeps every row in memory.
    """

    _segments: dict[Marker, list[pa.RecordBatch]] = field(default_factory=dict, compare=False)

    @property
    def guarantee(self) -> str:
        return "exactly-once"

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> "CollectWriter":
        return CollectWriter(self._segments, context)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        """Forgets what the starting point does not have."""
        newest = newest_of(ancestors)
        foreign = [each for each in self._segments if each[1] > newest.get(RunId(each[0]), 0)]
        for each in foreign:
            del self._segments[each]
        return None

    def table(self, schema: pa.Schema) -> pa.Table:
        """The committed rows, in the order of their checkpoints."""
        markers = sorted(self._segments, key=lambda marker: marker[1:])
        batches = [batch for each in markers for batch in self._segments[each]]
        return pa.Table.from_batches(batches, schema=schema)


class CollectWriter:
    """One subtask's part of a `Collect`."""

    def __init__(self, segments: dict[Marker, list[pa.RecordBatch]], context: SinkContext) -> None:
        self._segments = segments
        self._context = context
        self._interval: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._interval.append(batch)

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        batches, self._interval = self._interval, []
        rows = sum(batch.num_rows for batch in batches)
        if not rows:
            return []
        marker = [self._context.run_id, checkpoint_id, self._context.subtask]
        return [Segment(marker, rows, batches)]

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        for segment in committables:
            if not isinstance(segment, Segment):
                raise ProtocolError("a collect prepares segments only")
            run, checkpoint, subtask = msgspec.convert(segment.marker, Marker)
            if run == self._context.run_id:  # an earlier run has had its own
                self._segments[run, checkpoint, subtask] = list(segment.batches)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Print:
    """Prints each row as it comes; rows that are read again after a failure are printed again."""

    prefix: str = ""
    show: Callable[[str], None] = print

    @property
    def guarantee(self) -> str:
        return "at-least-once"

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> "PrintWriter":
        return PrintWriter(self)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        return None


class PrintWriter:
    """One subtask's part of a `Print`."""

    def __init__(self, sink: Print) -> None:
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self._sink.show(f"{self._sink.prefix}{row}")

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        return []

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        pass

    def close(self) -> None:
        pass
