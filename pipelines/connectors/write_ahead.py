"""A base for sinks whose target cannot hold a prepared transaction: a log, kept in the snapshot.

The records of an interval stay with the writer and go into the snapshot as a segment. When its
checkpoint has completed, the segment is published together with its marker, in one transaction of
the target; after a recovery the marker tells whether that happened. Survives any outage of the
target. Price: the records are visible an interval later, and wait in memory until then.

Extend it: implement `WriteAheadTarget`, and return a `WriteAheadWriter` from `Sink.open`.

Source: Flink, `GenericWriteAheadSink` and `CheckpointCommitter`.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec
import pyarrow as pa

from pipelines.connectors.sink import Segment, SinkContext
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.snapshots import Json


class Marker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which segment: what `subtask` of the sink `uid` wrote in `run_id` before `checkpoint_id`.

    It keeps its name whoever publishes it, in this run or one that was restored from it. Of one
    run, sink and subtask, segments are published in the order of their checkpoints.
    """

    run_id: RunId
    uid: Uid
    subtask: int
    checkpoint_id: CheckpointId


class WriteAheadTarget(Protocol):
    """Where segments go, for one subtask; used by its thread only."""

    def published(self, marker: Marker) -> bool:
        """Whether the segment is there already. Raises Retryable."""
        ...

    def publish(self, marker: Marker, batches: Iterable[pa.RecordBatch]) -> None:
        """Make records and marker visible in one step, or nothing.

        A try that is repeated because its outcome is not known asks for the marker again. Raises
        Retryable, or ProtocolError when this attempt has been replaced.
        """
        ...

    def close(self) -> None: ...


class WriteAheadWriter:
    """Guarantee: a segment is published once its checkpoint has completed, and only once.

    Needs a target that publishes records and marker together.
    """

    def __init__(self, target: WriteAheadTarget, context: SinkContext) -> None:
        self._target = target
        self._context = context
        self._interval: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._interval.append(batch)

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        batches, self._interval = tuple(self._interval), []
        if not batches:
            return []
        marker = Marker(
            run_id=self._context.run_id,
            uid=self._context.uid,
            subtask=self._context.subtask,
            checkpoint_id=checkpoint_id,
        )
        rows = sum(batch.num_rows for batch in batches)
        return [Segment(msgspec.to_builtins(marker), rows, batches)]

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        for segment in committables:
            if not isinstance(segment, Segment):
                raise InvariantViolated(f"a write-ahead log consists of segments, not {segment!r}")
            marker = msgspec.convert(segment.marker, Marker)
            if not self._target.published(marker):
                self._target.publish(marker, segment.batches)

    def close(self) -> None:
        self._interval = []
        self._target.close()
