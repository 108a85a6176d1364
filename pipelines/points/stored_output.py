"""The stored form of the output that sinks had prepared: JSON, and segments of records as files.

This module converts to it and back. The commit log decides when output is committed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from pipelines.connectors.sink import Segment
from pipelines.domain.errors import CorruptSnapshot
from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import FileHandle, Json, OperatorSnapshot, SegmentHandle
from pipelines.protocol.commit import Prepared

ReadBatches = Callable[[FileHandle], Iterator[pa.RecordBatch]]


class StoredCommittables(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON form of `Prepared` in a snapshot; its segments are stored apart."""

    checkpoint_id: CheckpointId
    items: list[Json]


def stored_committables(prepared: Iterable[Prepared]) -> Iterator[Json]:
    for each in prepared:
        plain = [item for item in each.committables if not isinstance(item, Segment)]
        if plain:
            yield msgspec.to_builtins(
                StoredCommittables(checkpoint_id=each.checkpoint_id, items=plain)
            )


def segments_of(prepared: Iterable[Prepared]) -> Iterator[tuple[CheckpointId, Segment]]:
    for each in prepared:
        for item in each.committables:
            if isinstance(item, Segment):
                yield each.checkpoint_id, item


def prepared_of(snapshots: Iterable[OperatorSnapshot], read: ReadBatches) -> tuple[Prepared, ...]:
    """Returns the oldest first. A segment is never divided between subtasks, and is read on use."""
    found: list[Prepared] = []
    for snapshot in snapshots:
        found += _plain(snapshot.committables)
        for handle in snapshot.segments:
            segment = Segment(handle.marker, handle.rows, _StoredRows(handle, read))
            found.append(Prepared(handle.checkpoint_id, (segment,)))
    return tuple(sorted(found, key=lambda prepared: prepared.checkpoint_id))


def quarantined_of(snapshots: Iterable[OperatorSnapshot]) -> tuple[Prepared, ...]:
    """Returns the oldest first."""
    found = [prepared for snapshot in snapshots for prepared in _plain(snapshot.quarantined)]
    return tuple(sorted(found, key=lambda prepared: prepared.checkpoint_id))


def committable_count(snapshot: OperatorSnapshot) -> int:
    stored = msgspec.convert(snapshot.committables, list[StoredCommittables])
    return sum(len(each.items) for each in stored) + len(snapshot.segments)


def _plain(committables: list[Json]) -> list[Prepared]:
    stored = msgspec.convert(committables, list[StoredCommittables])
    return [Prepared(each.checkpoint_id, tuple(each.items)) for each in stored]


@dataclass(frozen=True, slots=True)
class _StoredRows:
    """The records of a stored segment, verified each time they are read."""

    handle: SegmentHandle
    read: ReadBatches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in self.read(self.handle.file):
            rows += batch.num_rows
            yield batch
        if rows != self.handle.rows:
            raise CorruptSnapshot(
                f"{self.handle.file.name} holds {rows} records of a sink's output; the manifest"
                f" says {self.handle.rows}."
            )
