"""A base for sinks whose target cannot hold a prepared transaction: a log, kept in the snapshot.

The writer keeps the records of an interval and puts them into the snapshot as a segment. When its
checkpoint has completed, the segment is published together with its marker, in one transaction of
the target. After a recovery the marker shows whether that happened. Survives any outage of the
target. Price: the records become visible an interval later, and wait in memory until then. If the
target `StagesRows`, most of the work is done when the checkpoint completes.

Extend it: implement `WriteAheadTarget`, and return a `WriteAheadWriter` from `Sink.open`.

Source: Flink, `GenericWriteAheadSink` and `CheckpointCommitter`.
"""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from pipelines.connectors.sink import Segment, SinkContext
from pipelines.domain.errors import InvariantViolated, OutputLost
from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import Json

FIRST_ATTEMPT = Attempt(1)
"""The first attempt of a run: before it, nothing of the run can be in the target."""

FIRST_CHECKPOINT = CheckpointId(1)


class Marker(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Names a segment: what `subtask` of the sink `uid` wrote in `run_id` before `checkpoint_id`.

    The name stays the same in any publishing process, in this run or one restored from it. Segments
    of one run, sink and subtask are published in the order of their checkpoints. `after`: the
    target had all segments up to there when this one was prepared; None: it never forgets.
    """

    run_id: RunId
    uid: Uid
    subtask: int
    checkpoint_id: CheckpointId
    after: CheckpointId | None = None

    def is_of(self, writer: SinkContext) -> bool:
        """True if `writer` or an earlier attempt of it wrote the segment."""
        mine = (writer.run_id, writer.uid, writer.subtask)
        return (self.run_id, self.uid, self.subtask) == mine


class MarkerLost(Exception):
    """The target has forgotten a marker, so it is unknown whether a segment is there. Says why, and
    what a person can do about it."""


class WriteAheadTarget(Protocol):
    """Where the segments of one subtask go; used by its thread only."""

    def published(self, marker: Marker) -> bool:
        """True if the segment is there already. Raises MarkerLost, Retryable."""
        ...

    def publish(self, marker: Marker, batches: Iterable[pa.RecordBatch]) -> None:
        """Make records and marker visible in one step, or nothing.

        To repeat a try whose outcome is unknown, ask for the marker again. Raises Retryable, or
        ProtocolError if this attempt has been replaced.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class ForgetsMarkers(Protocol):
    """A target that may lose its markers, and can notice that if asked before the first of them.

    Its answer goes into the next segment, and so into the snapshot; no segment is prepared without
    it. A run's first attempt asks as soon as it has opened the target, so a later outage costs it
    nothing. Later attempts have to commit first what they restored.
    """

    def begun(self, marker: Marker) -> CheckpointId:
        """The checkpoint up to which the subtask's segments are there; from now on the target holds
        that for certain. Raises Retryable, ProtocolError."""
        ...


@runtime_checkable
class StagesRows(Protocol):
    """A target that takes rows as they come, invisibly, so that little is left to do when their
    checkpoint has completed. It also slows down a writer that is too fast for it.

    A short cut, which the target may abandon at any time: `publish` gets the rows anyway.
    """

    def stage(self, batch: pa.RecordBatch) -> None:
        """Raises no error that `publish` would survive, or could report better."""
        ...

    def end_stage(self, checkpoint_id: CheckpointId) -> None:
        """Called for every checkpoint, with rows or without."""
        ...


class WriteAheadWriter:
    """Guarantee: a segment is published once its checkpoint has completed, and only once; if that
    cannot be determined, the writer reports it with its range.

    Needs a target that publishes records and marker together.
    """

    def __init__(self, target: WriteAheadTarget, context: SinkContext) -> None:
        self._target = target
        self._context = context
        self._stages = target if isinstance(target, StagesRows) else None
        self._interval: list[pa.RecordBatch] = []
        self._published: CheckpointId | None = None  # the newest of its own segments, if known
        if context.attempt == FIRST_ATTEMPT:
            self._begin(FIRST_CHECKPOINT)

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._interval.append(batch)
            if self._stages is not None:
                self._stages.stage(batch)

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        if self._stages is not None:
            self._stages.end_stage(checkpoint_id)
        if not self._interval:
            return []
        self._begin(checkpoint_id)
        batches, self._interval = tuple(self._interval), []
        marker = msgspec.structs.replace(self._marker(checkpoint_id), after=self._published)
        rows = sum(batch.num_rows for batch in batches)
        return [Segment(msgspec.to_builtins(marker), rows, batches)]

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        for segment in committables:
            if not isinstance(segment, Segment):
                raise InvariantViolated(f"a write-ahead log consists of segments, not {segment!r}")
            marker = msgspec.convert(segment.marker, Marker)
            if not self._is_published(marker, segment.rows):
                self._target.publish(marker, segment.batches)
            if marker.is_of(self._context):
                self._published = max(marker.checkpoint_id, self._published or NO_CHECKPOINT)

    def close(self) -> None:
        self._interval = []
        self._target.close()

    def _begin(self, before: CheckpointId) -> None:
        """Asks the target how far it has the segments, unless that is known."""
        if self._published is None and isinstance(self._target, ForgetsMarkers):
            self._published = self._target.begun(self._marker(before))

    def _marker(self, checkpoint_id: CheckpointId) -> Marker:
        return Marker(
            run_id=self._context.run_id,
            uid=self._context.uid,
            subtask=self._context.subtask,
            checkpoint_id=checkpoint_id,
        )

    def _is_published(self, marker: Marker, rows: int) -> bool:
        try:
            return self._target.published(marker)
        except MarkerLost as loss:
            since = (
                "since it began" if marker.after is None else f"behind checkpoint {marker.after}"
            )
            raise OutputLost(
                f"Whether {rows} records of {marker.uid}, subtask {marker.subtask}, that run"
                f" {marker.run_id} wrote {since} up to checkpoint {marker.checkpoint_id} are"
                f" published is unknown: {loss}.",
                marker.checkpoint_id,
            ) from loss
