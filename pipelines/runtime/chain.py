"""The operators of one subtask: a tree of direct calls from the head to exchanges and sinks.

Owns the wiring, the operators' state backends and the sinks' commit logs; decides nothing about
checkpoints. Used by the subtask's thread only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from pipelines.channels.channel import Output
from pipelines.connectors.sink import SinkContext, SinkWriter
from pipelines.domain.elements import (
    MAX_WATERMARK_MS,
    MIN_WATERMARK_MS,
    Barrier,
    Mark,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.graph import NodeKind, Vertex
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.key_groups import range_of
from pipelines.domain.origin import RecordOrigin
from pipelines.operators.operator import Collector, Operator, OperatorContext, SideCollector
from pipelines.protocol.commit import CommitLog, Prepared
from pipelines.protocol.watermarks import EventTimeMark
from pipelines.runtime.exchange import Exchange
from pipelines.runtime.in_flight import InFlightRecords
from pipelines.runtime.key_times import KeyTime, by_key_group, key_times
from pipelines.runtime.operator_failure import is_located, located
from pipelines.runtime.restoring import RestoredOperator
from pipelines.state.backend import BackendFactory, FrozenState, StateBackend
from pipelines.stream import Pipeline


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """Where a chain runs: everything that makes its names and its share of keys unique."""

    run_id: RunId
    attempt: Attempt
    vertex: Vertex
    subtask: int
    parallelism: int
    max_parallelism: int


@dataclass(frozen=True, slots=True)
class OperatorCut:
    """One node at the cut: frozen state, and what the sinks prepared for it."""

    uid: Uid
    states: list[FrozenState]
    counters: dict[str, int]
    prepared: tuple[Prepared, ...] = ()


@dataclass(slots=True)
class _Sink:
    writer: SinkWriter
    log: CommitLog


@dataclass(slots=True)
class _Node:
    uid: Uid
    context: OperatorContext
    operator: Operator | None = None  # None: a source, whose records the subtask itself emits
    sink: _Sink | None = None
    exchanges: list[Exchange] = field(default_factory=list)


class OperatorChain:
    """Records enter at the head; `broadcast` sends marks out of every exchange."""

    def __init__(
        self,
        pipeline: Pipeline,
        place: ChainPlace,
        backends: BackendFactory,
        exchanges: dict[Uid, list[Exchange]],
        restored: dict[Uid, RestoredOperator],
        now_ms: Callable[[], int],
    ) -> None:
        self._pipeline = pipeline
        self._now_ms = now_ms
        self._place = place
        watermark_ms = restored[place.vertex.uid].watermark_ms
        self._restored_watermark_ms = MIN_WATERMARK_MS if watermark_ms is None else watermark_ms
        self._restored_times_ms = by_key_group(
            restored[place.vertex.uid].key_times_ms, place.max_parallelism
        )
        self._nodes: dict[Uid, _Node] = {}
        for uid in reversed(place.vertex.nodes):  # successors first, so that calls can be wired
            self._nodes[uid] = self._build(uid, backends, exchanges.get(uid, []), restored[uid])
        self._ordered = [self._nodes[uid] for uid in place.vertex.nodes]
        self._outputs = [o for node in self._ordered for e in node.exchanges for o in e.outputs]
        self.records_in = 0
        self.records_out = 0
        self.origin: RecordOrigin | None = None  # of the batch in work, or of the newest one

    @property
    def has_sinks(self) -> bool:
        return any(node.sink for node in self._ordered)

    @property
    def counters(self) -> dict[str, int]:
        """All counters of the chain, `<uid>.<name>`."""
        return {
            f"{node.uid}.{name}": value
            for node in self._ordered
            for name, value in node.context.counters.items()
        }

    def head_context(self) -> OperatorContext:
        return self._ordered[0].context

    def on_batch(
        self, port: int, batch: pa.RecordBatch, origin: RecordOrigin | None = None
    ) -> None:
        """A batch from an exchange into the head. Raises OperatorFailed."""
        self.records_in += batch.num_rows
        self.origin = origin
        self._deliver(self._ordered[0], port, batch)
        self._settle()

    def emit_from_source(self, batch: pa.RecordBatch, origin: RecordOrigin | None = None) -> None:
        """Raises OperatorFailed."""
        self.records_in += batch.num_rows
        self.origin = origin
        self._ordered[0].context.collect(batch)
        self._settle()

    def on_watermark(self, timestamp_ms: int) -> None:
        """Operators fire in topological order, then the mark leaves behind what they emitted."""
        for node in self._ordered:
            if node.operator is not None:
                self._advance(node.uid, node.operator, timestamp_ms)
        self._settle()
        self.broadcast(Watermark(timestamp_ms))

    def on_event_time(self, marks: list[EventTimeMark]) -> None:
        """Operators see event time; whether an input is idle concerns only who merges it."""
        for mark in marks:
            match mark:
                case Watermark(timestamp_ms):
                    self.on_watermark(timestamp_ms)
                case WatermarkStatus():
                    self.broadcast(mark)

    def _advance(self, uid: Uid, operator: Operator, timestamp_ms: int) -> None:
        """What fires now is laid to the newest batch: its records moved event time on."""
        try:
            operator.on_watermark(timestamp_ms)
            if timestamp_ms >= MAX_WATERMARK_MS:
                operator.on_end()
        except Exception as error:
            raise located(uid, self.origin, error) from error

    @property
    def awaits_processing_time(self) -> bool:
        return any(node.operator and node.operator.awaits_processing_time for node in self._ordered)

    def on_processing_time(self) -> None:
        """Raises OperatorFailed."""
        now_ms = self._now_ms()
        for node in self._ordered:
            if node.operator is not None and node.operator.awaits_processing_time:
                self._fire(node.uid, node.operator, now_ms)
        self._settle()

    def _fire(self, uid: Uid, operator: Operator, now_ms: int) -> None:
        try:
            operator.on_processing_time(now_ms)
        except Exception as error:
            raise located(uid, None, error) from error

    def broadcast(self, mark: Mark) -> None:
        for node in self._ordered:
            for exchange in node.exchanges:
                exchange.broadcast(mark)

    def pass_on(self, barrier: Barrier) -> list[InFlightRecords]:
        """Send a barrier downstream; one that overtakes returns what it has overtaken."""
        if not barrier.overtakes:
            self.broadcast(barrier)
            return []
        exchanges = [exchange for node in self._ordered for exchange in node.exchanges]
        return [kept for exchange in exchanges for kept in exchange.overtake(barrier)]

    def outputs_holding(self, checkpoint_id: CheckpointId) -> list[Output]:
        """Where this checkpoint's barrier waits behind records, and could overtake them."""
        exchanges = (exchange for node in self._ordered for exchange in node.exchanges)
        return [output for exchange in exchanges for output in exchange.holding(checkpoint_id)]

    def key_times_ms(self, watermark_ms: int | None) -> list[KeyTime]:
        """How far event time has come by key group, while a restore makes them unequal."""
        place = self._place
        own = range_of(place.subtask, place.parallelism, place.max_parallelism)
        return key_times(self._restored_times_ms, own, watermark_ms)

    def cut(self, barrier: Barrier) -> list[OperatorCut]:
        """The synchronous part of a snapshot."""
        return [self._cut_node(node, barrier) for node in self._ordered]

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        """Increments may build on this checkpoint from now on."""
        for node in self._ordered:
            node.context.state.on_checkpoint_completed(checkpoint_id)

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        for node in self._ordered:
            node.context.state.on_checkpoint_aborted(checkpoint_id)

    def commit(self, checkpoint_id: CheckpointId) -> None:
        for node in self._ordered:
            if node.sink is not None:
                _commit(node.sink.writer, node.sink.log.on_completed(checkpoint_id))

    def close(self) -> None:
        for node in self._ordered:
            if node.sink is not None:
                node.sink.writer.close()
            node.context.state.close()

    def state_bytes(self) -> int:
        contexts = [node.context for node in self._ordered]
        return sum(c.state.statistics().state_bytes + c.operator_state.nbytes for c in contexts)

    def flush(self) -> bool:
        """Whether all channels downstream would take an element; what waited for them goes first.

        Raises ChannelClosed.
        """
        full = [output for output in self._outputs if not output.flush()]
        return not full

    def _settle(self) -> None:
        """No operator is at work: what backends hold in memory may move."""
        for node in self._ordered:
            node.context.state.settle()

    def _build(
        self,
        uid: Uid,
        backends: BackendFactory,
        exchanges: list[Exchange],
        restored: RestoredOperator,
    ) -> _Node:
        place = self._place
        groups = range_of(place.subtask, place.parallelism, place.max_parallelism)
        state = backends(groups, place.max_parallelism)
        context = OperatorContext(
            uid=uid,
            subtask=place.subtask,
            parallelism=place.parallelism,
            state=state,
            collect=self._collector(self._successors(uid), exchanges),
            collect_side=self._side_collector(uid),
            counters=dict(restored.counters),
            now_ms=self._now_ms,
            restored_watermark_ms=self._restored_watermark_ms,
            restored_times_ms=self._restored_times_ms,
        )
        node = _Node(uid, context, exchanges=exchanges)
        match self._pipeline.graph.node(uid).kind:
            case NodeKind.OPERATOR:
                node.operator = self._open_operator(uid, context, state, restored)
            case NodeKind.SINK:
                node.sink = self._open_sink(uid, restored)
            case NodeKind.SOURCE:
                pass
        return node

    def _successors(self, uid: Uid, side: str | None = None) -> list[Collector]:
        successors = self._pipeline.graph.successors_in_chain(uid, side)
        return [self._receiver(self._nodes[successor]) for successor in successors]

    def _side_collector(self, uid: Uid) -> SideCollector:
        read = {
            side: self._collector(self._successors(uid, side), [])
            for side in self._pipeline.graph.side_outputs_of(uid)
        }

        def collect_side(side: str, batch: pa.RecordBatch) -> None:
            if side in read:
                read[side](batch)

        return collect_side

    def _collector(self, successors: list[Collector], exchanges: list[Exchange]) -> Collector:
        targets = [*successors, *(self._sender(exchange) for exchange in exchanges)]

        def collect(batch: pa.RecordBatch) -> None:
            if batch.num_rows == 0:
                return
            self.records_out += batch.num_rows
            for target in targets:
                target(batch)

        return collect

    def _sender(self, exchange: Exchange) -> Collector:
        return lambda batch: exchange.send(batch, self.origin)

    def _receiver(self, node: _Node) -> Collector:
        return lambda batch: self._deliver(node, 0, batch)

    def _deliver(self, node: _Node, port: int, batch: pa.RecordBatch) -> None:
        try:
            if node.sink is not None:
                node.sink.writer.write(batch)
            elif node.operator is not None:
                node.operator.on_batch(port, batch)
        except Exception as error:
            raise located(node.uid, self._origin_at(node, batch, error), error) from error

    def _origin_at(
        self, node: _Node, batch: pa.RecordBatch, error: Exception
    ) -> RecordOrigin | None:
        """One record, if the operator knows the row and sees the rows as the source gave them."""
        origin = self.origin
        if origin is None or node.operator is None or is_located(error):
            return origin
        graph = self._pipeline.graph
        upstreams = [graph.node(c.upstream) for c in graph.node(node.uid).inputs]
        if any(upstream.kind is not NodeKind.SOURCE for upstream in upstreams):
            return origin
        if batch.num_rows != origin.records:
            return origin  # a part of it, behind an exchange
        row = node.operator.failing_row(batch)
        return origin if row < 0 else origin.at_row(row)

    def _open_operator(
        self, uid: Uid, context: OperatorContext, state: StateBackend, restored: RestoredOperator
    ) -> Operator:
        operator = self._pipeline.operators[uid]()
        operator.open(context, self._pipeline.input_schemas(uid))
        for stored in restored.states:
            if stored.database is None or not state.adopt(stored.database):
                state.restore(stored.name, stored.rows)
        for name, batches in restored.operator_states:
            context.operator_state.restore(name, batches)
        return operator

    def _open_sink(self, uid: Uid, restored: RestoredOperator) -> _Sink:
        place = self._place
        context = SinkContext(place.run_id, place.attempt, uid, place.subtask)
        (schema,) = self._pipeline.input_schemas(uid)
        writer = self._pipeline.sinks[uid].open(context, schema)
        log = CommitLog(restored.prepared)
        _commit(writer, log.take_restored())
        return _Sink(writer, log)

    def _cut_node(self, node: _Node, barrier: Barrier) -> OperatorCut:
        prepared: tuple[Prepared, ...] = ()
        if node.sink is not None:
            committables = node.sink.writer.prepare(barrier.checkpoint_id)
            prepared = node.sink.log.on_prepared(barrier.checkpoint_id, committables)
        context = node.context
        states = [*_cut_states(context.state, barrier), *context.operator_state.cut()]
        return OperatorCut(node.uid, states, dict(context.counters), prepared)


def _cut_states(state: StateBackend, barrier: Barrier) -> list[FrozenState]:
    """A savepoint is whole: it depends on no other point."""
    if barrier.is_savepoint:
        return state.cut()
    return state.cut_increment(barrier.checkpoint_id, barrier.confirmed_id)


def _commit(writer: SinkWriter, due: tuple[Prepared, ...]) -> None:
    for prepared in due:
        writer.commit(prepared.checkpoint_id, list(prepared.committables))
