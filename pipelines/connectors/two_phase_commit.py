"""A base for sinks whose target can hold a prepared transaction: durable, but not visible.

A transaction begins with the first record of an interval, is prepared at the barrier and committed
when the checkpoint has completed. The snapshot keeps its handle. If the target has given a
transaction up meanwhile, the sink reports it as lost, with its contents, and never skips it.

Extend it: implement `TwoPhaseCommitTarget`, and return a `TwoPhaseCommitWriter` from `Sink.open`.

Source: Flink, `TwoPhaseCommitSinkFunction`; Gray and Lamport, "Consensus on Transaction Commit".
"""

from typing import Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from pipelines.connectors.sink import SinkContext
from pipelines.domain.errors import OutputLost
from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import Json


class TransactionLost(Exception):
    """A prepared transaction is provably neither pending nor committed. Says why, in a clause.

    `on_restore`, another clause, says what happens to the output after an older restored point.
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
        """Make it durable and keep it invisible; returns the handle that finishes it.

        Raises PrepareRefused if it could not and goes on as before, Retryable if it is gone. In
        either case the checkpoint does not complete.
        """
        ...

    def abandon(self) -> None:
        """Roll back what was not prepared. Raises nothing."""
        ...


class TwoPhaseCommitTarget(Protocol):
    """Where transactions live, for one subtask; used by its thread only."""

    def begin(self, context: SinkContext, schema: pa.Schema, after: CheckpointId) -> Transaction:
        """For records written after `after`; NO_CHECKPOINT: since the attempt began."""
        ...

    def commit(self, handle: Json) -> None:
        """Harmless when it has been committed. Raises TransactionLost, Retryable, ProtocolError."""
        ...

    def end_orphans(self, context: SinkContext, keep: list[Json]) -> None:
        """Abort what earlier attempts of this run and sink left prepared or open.

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
    """What a snapshot keeps: the handle, and the range that is gone if the transaction is lost."""

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


class TwoPhaseCommitWriter:
    """Guarantee: nothing is visible before its checkpoint has completed; what was prepared for a
    completed checkpoint becomes visible, or is reported as lost.

    Orphans are ended after restored transactions have been committed, so that none of those is
    among them, and before the first record is written, which an orphan's locks might block.
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
            handle = self._transaction.prepare(checkpoint_id)
            prepared = [msgspec.to_builtins(self._prepared(checkpoint_id, handle))]
            self._transaction, self._records = None, 0
        self._newest = checkpoint_id
        return prepared

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        for prepared in msgspec.convert(committables, list[PreparedTransaction]):
            self._commit(prepared)
            if not self._has_ended_orphans:
                self._committed_first.append(prepared.handle)

    def close(self) -> None:
        if self._transaction is not None:
            self._transaction.abandon()
            self._transaction = None
        self._target.close()

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
