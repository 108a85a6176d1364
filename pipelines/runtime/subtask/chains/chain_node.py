"""One node of a chain: an operator, a sink with its commit log, or the source at the head.

Owns everything that the node has open. `chain_delivery` decides which node follows which.
`ChainPlace` says where the chain runs. Its values make names unique, and give its key groups.
"""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

import pyarrow as pa

from pipelines.connectors.sink import PrepareRefused, SinkWriter, token_of
from pipelines.domain.elements import Barrier, WatermarkStatus
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.domain.graph import Vertex
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.key_groups import KeyGroupRange, range_of
from pipelines.domain.ledger import RECORDS_WRITTEN, OutputShare
from pipelines.domain.origins import Firing, Origins
from pipelines.operators.operator import Operator, OperatorContext
from pipelines.protocol.commit import CommitLog, CommitPermit, OutputLedger, Prepared
from pipelines.runtime.subtask.chains.exchange import Exchange
from pipelines.runtime.subtask.operator_failure import located, located_firing
from pipelines.runtime.subtask.sources.split_screen import Quarantine
from pipelines.state.backend import FrozenState, StateBackend
from pipelines.state.row_digest import RowCount, RowDigest
from pipelines.state.timers import moment_text

RECORDS_READ = "records_read"
"""A counter of a source. A cut counts the records before its positions: no restart adds to it."""


@dataclass(frozen=True, slots=True)
class OperatorCut:
    """One node at the cut: its frozen state, and the output that sinks got and prepared."""

    uid: Uid
    states: list[FrozenState]
    counters: dict[str, int]
    prepared: tuple[Prepared, ...] = ()
    outputs: tuple[OutputShare, ...] = ()
    quarantined: tuple[Prepared, ...] = ()  # by a source
    _: KW_ONLY
    assigned_ms: int | None = None


class SinkCut(NamedTuple):
    """The output in a snapshot: the prepared output and the shares that a sink got, or the records
    that a source has quarantined."""

    prepared: tuple[Prepared, ...] = ()
    outputs: tuple[OutputShare, ...] = ()
    quarantined: tuple[Prepared, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenSink:
    writer: SinkWriter
    log: CommitLog
    given: RowDigest | RowCount = field(default_factory=RowDigest)
    counter: str = RECORDS_WRITTEN  # counts the rows that the sink got
    ledger: OutputLedger = field(default_factory=OutputLedger)

    def write(self, batch: pa.RecordBatch) -> None:
        self.writer.write(batch)
        self.given.add(batch)

    def prepare(self, checkpoint_id: CheckpointId) -> SinkCut:
        committables = self.writer.prepare(checkpoint_id)
        self.ledger.on_given(*self.given.take())
        tokens = [token_of(self.writer, committable) for committable in committables]
        return SinkCut(
            self.log.on_prepared(checkpoint_id, committables),
            self.ledger.on_prepared(checkpoint_id, tokens),
        )

    def commit_restored(self) -> None:
        self._commit(self.log.take_restored())

    def commit(self, permit: CommitPermit) -> None:
        self.ledger.on_completed(permit.checkpoint_id)
        self._commit(self.log.on_completed(permit.checkpoint_id))

    def _commit(self, due: Iterable[Prepared]) -> None:
        for prepared in due:
            self.writer.commit(prepared.checkpoint_id, list(prepared.committables))


@dataclass(slots=True)
class ChainNode:
    """One node. With neither operator nor sink it is a source: the subtask emits its records."""

    uid: Uid
    context: OperatorContext
    operator: Operator | None = None
    sink: OpenSink | None = None
    quarantine: Quarantine | None = None  # of a source, if it may have records there
    exchanges: list[Exchange] = field(default_factory=list)
    _: KW_ONLY
    assigned_ms: int | None = None  # event time behind an operator that assigns it, once known

    @property
    def assigns_event_time(self) -> bool:
        return self.operator is not None and self.operator.assigns_event_time

    @property
    def awaits_processing_time(self) -> bool:
        return self.operator is not None and self.operator.awaits_processing_time

    def take(self, port: int, batch: pa.RecordBatch) -> None:
        """Raises what the operator or the sink raises."""
        if self.sink is not None:
            self.sink.write(batch)
            self.context.count(self.sink.counter, batch.num_rows)
        elif self.operator is not None:
            self.operator.on_batch(port, batch)

    def on_watermark(self, timestamp_ms: int, origins: Origins) -> None:
        """`origins`: those of the newest batch, whose records have advanced event time."""
        operator = self.operator
        if operator is None:
            return
        try:
            operator.on_watermark(timestamp_ms)
            if timestamp_ms >= MAX_WATERMARK_MS:
                operator.on_end()
        except Exception as error:
            firing = operator.firing() or _at_event_time(timestamp_ms)
            raise located_firing(self.uid, origins, error, firing) from error

    def on_status(self, status: WatermarkStatus) -> None:
        if self.operator is not None:
            self.operator.on_status(is_idle=status.is_idle)

    def on_processing_time(self, now_ms: int) -> None:
        operator = self.operator
        if operator is None or not operator.awaits_processing_time:
            return
        try:
            operator.on_processing_time(now_ms)
        except Exception as error:
            firing = operator.firing() or Firing(f"at processing time {moment_text(now_ms)}")
            raise located_firing(self.uid, (), error, firing) from error

    def on_cut(self, checkpoint_id: CheckpointId) -> None:
        if self.operator is not None:
            self._tell(self.operator.on_cut, checkpoint_id)

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        """From now on, increments may build on this checkpoint."""
        self.context.state.on_checkpoint_completed(checkpoint_id)
        if self.operator is not None:
            self._tell(self.operator.on_checkpoint_completed, checkpoint_id)

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        self.context.state.on_checkpoint_aborted(checkpoint_id)
        if self.operator is not None:
            self._tell(self.operator.on_checkpoint_aborted, checkpoint_id)

    def prepare(self, checkpoint_id: CheckpointId) -> SinkCut:
        """Raises PrepareRefused, and OperatorFailed as `cut` does."""
        try:
            if self.quarantine is not None:
                return SinkCut(quarantined=self.quarantine.prepare(checkpoint_id))
            return SinkCut() if self.sink is None else self.sink.prepare(checkpoint_id)
        except PrepareRefused:
            raise
        except Exception as error:
            raise located(self.uid, (), error) from error

    def cut(self, barrier: Barrier, of_sink: SinkCut, *, keeps_state: bool = True) -> OperatorCut:
        """Raises OperatorFailed without a record, because none is in work."""
        try:
            return self._cut(barrier, of_sink, keeps_state=keeps_state)
        except Exception as error:
            raise located(self.uid, (), error) from error

    def commit(self, permit: CommitPermit) -> None:
        """Raises OperatorFailed, as `cut` does."""
        try:
            if self.quarantine is not None:
                self.quarantine.commit(permit)
            if self.sink is not None:
                self.sink.commit(permit)
        except Exception as error:
            raise located(self.uid, (), error) from error

    def _tell(self, what: Callable[[CheckpointId], None], checkpoint_id: CheckpointId) -> None:
        """Raises OperatorFailed, as `cut` does."""
        try:
            what(checkpoint_id)
        except Exception as error:
            raise located(self.uid, (), error) from error

    def _cut(self, barrier: Barrier, of_sink: SinkCut, *, keeps_state: bool = True) -> OperatorCut:
        context = self.context
        states: list[FrozenState] = []
        if keeps_state:
            states = [*_cut_states(context.state, barrier), *context.operator_state.cut()]
        return OperatorCut(
            self.uid,
            states,
            dict(context.counters),
            of_sink.prepared,
            of_sink.outputs,
            of_sink.quarantined,
            assigned_ms=self.assigned_ms,
        )

    def close(self) -> None:
        if self.quarantine is not None:
            self.quarantine.close()
        if self.sink is not None:
            self.sink.writer.close()
        if self.operator is not None:
            self.operator.close()
        self.context.state.close()


def _at_event_time(timestamp_ms: int) -> Firing:
    if timestamp_ms >= MAX_WATERMARK_MS:
        return Firing("at the end of its input")
    return Firing(f"when event time reached {moment_text(timestamp_ms)}")


def _cut_states(state: StateBackend, barrier: Barrier) -> list[FrozenState]:
    """Cuts a savepoint as a whole, so that it depends on no other point."""
    if barrier.is_savepoint:
        return state.cut_native() if barrier.is_native else state.cut()
    return state.cut_increment(barrier.checkpoint_id, barrier.confirmed_id)


@dataclass(frozen=True, slots=True)
class ChainPlace:
    run_id: RunId
    attempt: Attempt
    vertex: Vertex
    subtask: int
    parallelism: int
    max_parallelism: int

    @property
    def key_groups(self) -> KeyGroupRange:
        return range_of(self.subtask, self.parallelism, self.max_parallelism)
