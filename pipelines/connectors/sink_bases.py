"""Bases for sinks: for a target that can hold a prepared transaction, and for one that cannot.

Two phases: a transaction begins with the first record of an interval, is prepared at the barrier
and committed when the checkpoint has completed. The snapshot keeps its handle. If the target gives
up a transaction in between, the sink never skips it: it reports the transaction and its range as
lost. Implement `TwoPhaseCommitTarget`, and return a `TwoPhaseCommitWriter` from `Sink.open`.

A write-ahead log: the writer keeps the records of an interval and puts them into the snapshot as a
segment. When its checkpoint has completed, the segment is published together with its marker, in
one transaction of the target. After a recovery the marker shows whether that happened. This
survives any outage of the target. Its price: the records become visible an interval later, and wait
in memory until then. If the target implements `StagesRows`, most of the work is already done when
the checkpoint completes. Implement `WriteAheadTarget`, and return a `WriteAheadWriter` from
`Sink.open`.

Source: Flink, `TwoPhaseCommitSinkFunction`, `GenericWriteAheadSink` and `CheckpointCommitter`; Gray
and Lamport, "Consensus on Transaction Commit".
"""

import time
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from pipelines.connectors.sink import PrepareRefused, Segment, SinkContext
from pipelines.domain.errors import InvariantViolated, OutputLost, Retryable
from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import Json


class TransactionLost(Exception):
    """A prepared transaction is provably neither pending nor committed; the message says why.

    The message is a clause. So is `on_restore`: it says what happens to the output that came after
    an older point if that point is restored.
    """

    def __init__(
        self, why: str, on_restore: str = "what came after it is read and written again"
    ) -> None:
        super().__init__(why)
        self.on_restore = on_restore


class Transaction(Protocol):
    """The records of one interval of one subtask, on their way to the target."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def prepare(self, checkpoint_id: CheckpointId) -> Json:
        """Make it durable and keep it invisible; returns the handle that commits it.

        Raises PrepareRefused if it cannot and stays open as before, Retryable if it is gone. In
        either case the checkpoint does not complete.
        """
        ...

    def abandon(self) -> None:
        """Roll back what was not prepared. Raises nothing."""
        ...


class TwoPhaseCommitTarget(Protocol):
    """The place of one subtask's transactions; used by its thread only."""

    def begin(self, context: SinkContext, schema: pa.Schema, after: CheckpointId) -> Transaction:
        """Begin one for records after `after`; NO_CHECKPOINT means since the attempt began."""
        ...

    def commit(self, handle: Json) -> None:
        """Harmless if it is already committed. Raises TransactionLost, Retryable, ProtocolError."""
        ...

    def end_orphans(self, context: SinkContext, keep: list[Json]) -> None:
        """Roll back transactions that earlier attempts of this run and sink left prepared or open.

        Ends only transactions of subtasks that `context.inherits`, and none in `keep`: those
        handles were restored and committed just now. Leaves transactions of other runs and sinks
        alone.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class HoldsTransactions(Protocol):
    """A sink whose target gives up a transaction that stays open for too long."""

    @property
    def transaction_timeout_ms(self) -> int: ...


class PreparedTransaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transaction in a snapshot: its handle, and the range that is gone if it is lost."""

    run_id: RunId
    attempt: Attempt
    uid: Uid
    subtask: int
    after: CheckpointId | None  # the checkpoint before; None: where this attempt began
    checkpoint_id: CheckpointId
    records: int
    handle: Json

    @property
    def range(self) -> str:
        since = "where it started" if self.after is None else f"checkpoint {self.after}"
        return (
            f"{self.records} records of {self.uid}, subtask {self.subtask}, that attempt"
            f" {self.attempt} of run {self.run_id} wrote between {since} and checkpoint"
            f" {self.checkpoint_id}"
        )


ROOM_WITHIN_S = 30.0
"""How long a target may lack room for one more prepared transaction while older ones wait."""


class TwoPhaseCommitWriter:
    """Guarantee: nothing is visible before its checkpoint has completed; what was prepared for a
    completed checkpoint becomes visible, or is reported as lost.

    It ends orphans after it has committed the restored transactions, so that none of those counts
    as an orphan. It does so before it writes the first record, which an orphan's locks might block.

    What was prepared for a checkpoint that failed waits for a later one to complete. If the target
    then refuses to prepare more, because those transactions take its room, no checkpoint completes
    any more. So a writer that is refused for `ROOM_WITHIN_S` while the same transactions wait fails
    its subtask: the recovery rolls them back and reads their records again.
    """

    def __init__(
        self, target: TwoPhaseCommitTarget, context: SinkContext, schema: pa.Schema
    ) -> None:
        self._target = target
        self._context = context
        self._schema = schema
        self._transaction: Transaction | None = None
        self._records = 0
        self._newest = NO_CHECKPOINT
        self._uncommitted: list[CheckpointId] = []  # prepared by this writer, oldest first
        self._refused_since: tuple[CheckpointId, float] | None = None  # the oldest of them then
        self._committed_first: list[Json] = []
        self._has_ended_orphans = False

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._transaction is None:
            self._end_orphans_once()
            self._transaction = self._target.begin(self._context, self._schema, self._newest)
        self._transaction.write(batch)
        self._records += batch.num_rows

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        """An interval without records has no transaction."""
        self._end_orphans_once()
        prepared: list[Json] = []
        if self._transaction is not None:
            try:
                handle = self._transaction.prepare(checkpoint_id)
            except PrepareRefused as refusal:
                self._check_room_may_come(refusal)
                raise
            prepared = [msgspec.to_builtins(self._prepared(checkpoint_id, handle))]
            self._transaction, self._records = None, 0
            self._uncommitted.append(checkpoint_id)
            self._refused_since = None
        self._newest = checkpoint_id
        return prepared

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        for prepared in msgspec.convert(committables, list[PreparedTransaction]):
            self._commit(prepared)
            self._uncommitted = [n for n in self._uncommitted if n != prepared.checkpoint_id]
            if not self._has_ended_orphans:
                self._committed_first.append(prepared.handle)

    def close(self) -> None:
        if self._transaction is not None:
            self._transaction.abandon()
            self._transaction = None
        self._target.close()

    def _check_room_may_come(self, refusal: PrepareRefused) -> None:
        """Raises Retryable if it has long been refused while the same transactions wait."""
        if not self._uncommitted:
            self._refused_since = None
            return
        oldest, now_s = self._uncommitted[0], time.monotonic()
        if self._refused_since is None or self._refused_since[0] != oldest:
            self._refused_since = (oldest, now_s)
        elif now_s - self._refused_since[1] >= ROOM_WITHIN_S:
            raise Retryable(
                f"{refusal} Transactions since checkpoint {oldest} wait to be committed and take"
                " the room themselves; the recovery rolls them back."
            ) from refusal

    def _commit(self, prepared: PreparedTransaction) -> None:
        try:
            self._target.commit(prepared.handle)
        except TransactionLost as loss:
            raise OutputLost(
                f"{prepared.range} are lost: {loss}. Restore a point of before checkpoint"
                f" {prepared.checkpoint_id}, or start from the beginning: {loss.on_restore}.",
                prepared.checkpoint_id,
            ) from loss

    def _end_orphans_once(self) -> None:
        if not self._has_ended_orphans:
            self._target.end_orphans(self._context, self._committed_first)
            self._has_ended_orphans = True
            self._committed_first = []

    def _prepared(self, checkpoint_id: CheckpointId, handle: Json) -> PreparedTransaction:
        context, after = self._context, self._newest
        return PreparedTransaction(
            run_id=context.run_id,
            attempt=context.attempt,
            uid=context.uid,
            subtask=context.subtask,
            after=None if after == NO_CHECKPOINT else after,
            checkpoint_id=checkpoint_id,
            records=self._records,
            handle=handle,
        )


FIRST_ATTEMPT = Attempt(1)
"""The first attempt of a run: before it, nothing of the run can be in the target."""

FIRST_CHECKPOINT = CheckpointId(1)


class Marker(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Names a segment: what `subtask` of the sink `uid` wrote in `run_id` before `checkpoint_id`.

    The name does not depend on the process that publishes, in this run or in one restored from it.
    Segments of one run, sink and subtask are published in the order of their checkpoints. `after`:
    the target had all segments up to this checkpoint when this segment was prepared. None: the
    target never forgets markers.
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
    """The target has forgotten a marker, so it is unknown whether a segment is there.

    The message says why, and what a person can do about it.
    """


class WriteAheadTarget(Protocol):
    """The destination of one subtask's segments; used by its thread only."""

    def published(self, marker: Marker) -> bool:
        """True if the segment is there already. Raises MarkerLost, Retryable."""
        ...

    def publish(self, marker: Marker, batches: Iterable[pa.RecordBatch]) -> None:
        """Make records and marker visible in one step, or neither.

        If the outcome of a try is unknown, ask for the marker again before you repeat it. Raises
        Retryable, or ProtocolError if this attempt has been replaced.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class ForgetsMarkers(Protocol):
    """A target that may lose its markers, but can notice that if asked before the first of them.

    Its answer goes into the next segment, and so into the snapshot; no segment is prepared without
    it. A run's first attempt asks as soon as it has opened the target, so a later outage costs it
    nothing. Later attempts first have to commit the segments that they restored.
    """

    def begun(self, marker: Marker) -> CheckpointId:
        """Returns the checkpoint up to which the subtask's segments are there.

        From then on, the target remembers it. Raises Retryable, ProtocolError.
        """
        ...


@runtime_checkable
class StagesRows(Protocol):
    """A target that takes rows invisibly as they come, so that a commit has little left to do.

    It also slows down a writer that is too fast for it. Staging is a shortcut that the target may
    abandon at any time: `publish` gets the rows anyway.
    """

    def stage(self, batch: pa.RecordBatch) -> None:
        """Takes rows. Raises no error that `publish` would survive or could report better."""
        ...

    def end_stage(self, checkpoint_id: CheckpointId) -> None:
        """Called for every checkpoint, with rows or without."""
        ...


class WriteAheadWriter:
    """Guarantee: a segment is published once its checkpoint has completed, and only once.

    If the writer cannot determine that, it reports the segment with its range. Needs a target that
    publishes records and marker together.
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
        """Asks the target up to which checkpoint it has the segments, unless that is known."""
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
