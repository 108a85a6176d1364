"""The chain of one subtask: its nodes call each other directly; only the ends touch channels.

Owns operators, sinks, their state and the sinks' commit logs; decides nothing about
checkpoints. Used by the subtask's thread only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from pipelines.channels.channel import Output
from pipelines.connectors.source import Offsets
from pipelines.domain.elements import (
    Barrier,
    Mark,
    Origins,
    Part,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import check
from pipelines.domain.events import HotKeys, MetricSample
from pipelines.domain.graph import JobGraph
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.operators.operator import AsyncOperator, OperatorContext, knows_processing_time
from pipelines.protocol.acking import Ids
from pipelines.protocol.fencing import CommitPermit
from pipelines.protocol.watermarks import EventTimeMark
from pipelines.runtime.subtask.acking.anchoring import Anchoring
from pipelines.runtime.subtask.chains.chain_building import ChainBuilder, Quarantines
from pipelines.runtime.subtask.chains.chain_delivery import ChainDelivery
from pipelines.runtime.subtask.chains.chain_node import ChainNode, ChainPlace, OperatorCut
from pipelines.runtime.subtask.chains.exchange import Exchange
from pipelines.runtime.subtask.operator_failure import OperatorFailed
from pipelines.runtime.subtask.snapshots.in_flight import InFlightRecords, KeyTime, key_times
from pipelines.runtime.subtask.snapshots.restoring import RestoredOperator
from pipelines.runtime.subtask.sources.split_screen import Quarantine
from pipelines.state.backend import BackendFactory
from pipelines.stream import Pipeline

BARRIERS_SENT = "barriers_sent"
"""Counter: one per channel that a barrier was sent into."""


class OperatorChain:
    """Records enter at the head; `broadcast` sends marks out of every exchange."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        place: ChainPlace,
        backends: BackendFactory,
        exchanges: dict[Uid, list[Exchange]],
        restored: dict[Uid, RestoredOperator],
        now_ms: Callable[[], int],
        anchoring: Anchoring | None = None,
        quarantines: Quarantines | None = None,
        keeps_state: bool = True,
        digests_output: bool = True,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`anchoring` None: no acker follows the records. `keeps_state`: cuts hold the state.
        `wake`: from any thread, a result has come."""
        self._place = place
        self._now_ms = now_ms
        self._anchoring = anchoring
        self._keeps_state = keeps_state
        self._delivery = ChainDelivery(pipeline.graph, anchoring)
        self._nodes = ChainBuilder(
            pipeline=pipeline,
            place=place,
            backends=backends,
            exchanges=exchanges,
            restored=restored,
            now_ms=now_ms,
            delivery=self._delivery,
            quarantines=quarantines or Quarantines(),
            digests_output=digests_output,
        ).build()
        self._operators = [node.operator for node in self._nodes if node.operator is not None]
        self._timed = [each for each in self._operators if knows_processing_time(each)]
        self._times = _times_of(pipeline.graph, self._nodes)
        self._input_time = self._times[None]
        for node in self._nodes:
            if node.assigns_event_time:
                node.context.mark = partial(self._on_assigned, node)
        head = self._nodes[0]
        self._async = head.operator if isinstance(head.operator, AsyncOperator) else None
        head.context.work = self._delivery
        head.context.wake = wake
        self._settles = [node.context.state.settle for node in self._nodes]
        self._exchanges = [exchange for node in self._nodes for exchange in node.exchanges]
        self._outputs = [output for exchange in self._exchanges for output in exchange.outputs]
        self._outputs += [] if anchoring is None else anchoring.outputs

    @property
    def records_in(self) -> int:
        return self._delivery.records_in

    @property
    def records_out(self) -> int:
        return self._delivery.records_out

    def hot_keys(self) -> list[HotKeys]:
        """Of the exchanges by key, those that send much to few key groups."""
        samplers = (exchange.sampler for exchange in self._exchanges)
        found = (sampler.hottest() for sampler in samplers if sampler is not None)
        return [each for each in found if each is not None]

    @property
    def bytes_out(self) -> int:
        """Callable from any thread; leaves out messages to ackers."""
        return sum(each.sent_bytes for exchange in self._exchanges for each in exchange.outputs)

    @property
    def has_sinks(self) -> bool:
        return any(node.sink for node in self._nodes)

    @property
    def quarantine(self) -> Quarantine | None:
        """The quarantine of the source at the head."""
        return self._nodes[0].quarantine

    @property
    def counters(self) -> dict[str, int]:
        """All counters of the chain, `<uid>.<name>`. From any thread."""
        return {
            f"{node.uid}.{name}": value
            for node in self._nodes
            for name, value in dict(node.context.counters).items()  # copied in one step
        }

    @property
    def metrics(self) -> list[MetricSample]:
        """The metrics of the authors' functions in the chain. From any thread."""
        return [sample for node in self._nodes for sample in node.context.metrics.samples(node.uid)]

    def head_context(self) -> OperatorContext:
        return self._nodes[0].context

    def count(self, counts: Mapping[str, int]) -> None:
        """Adds to the counters of the head."""
        context = self._nodes[0].context
        for name, count in counts.items():
            context.count(name, count)

    def on_batch(self, port: int, batch: pa.RecordBatch, parts: Sequence[Part] = ()) -> None:
        """Takes a batch from an exchange into the head; `parts`: what was joined in it, in order.

        Raises OperatorFailed.
        """
        delivery = self._delivery
        plain = delivery.begin(batch, parts)
        if self._anchoring is None:
            delivery.deliver(self._nodes[0], port, plain)
            delivery.settle()
        else:
            self._follow(lambda: delivery.deliver(self._nodes[0], port, plain))
        self._settle()

    def emit_from_source(
        self,
        batch: pa.RecordBatch,
        origins: Origins = (),
        offsets: Offsets | None = None,
        trees: Ids | None = None,
    ) -> None:
        """`trees`: the tree of each row, where records are followed. Raises OperatorFailed."""
        self._delivery.begin_emission(batch, origins, offsets, trees)
        self._follow(lambda: self._nodes[0].context.collect(batch))
        self._settle()

    def on_watermark(self, timestamp_ms: int) -> None:
        """Operators fire in topological order; then the mark leaves, behind their output."""
        self._delivery.begin_moment()
        for node in self._input_time.nodes:
            node.on_watermark(timestamp_ms, self._delivery.origins)
        self._settle()
        self.broadcast(Watermark(timestamp_ms))

    def on_event_time(self, marks: list[EventTimeMark]) -> None:
        """Operators see event time; only the subtask that merges an input sees that it is idle."""
        for mark in marks:
            match mark:
                case Watermark(timestamp_ms):
                    self.on_watermark(timestamp_ms)
                case WatermarkStatus():
                    for node in self._input_time.nodes:
                        node.on_status(mark)
                    self.broadcast(mark)

    @property
    def is_full(self) -> bool:
        """True: its head takes no input now."""
        return self._async is not None and self._async.is_full

    @property
    def awaits_results(self) -> bool:
        return self._async is not None and self._async.awaits_results

    def on_results(self) -> None:
        """Results that have come leave the head. Raises OperatorFailed."""
        if self._async is not None:
            self._delivery.give_out(self._nodes[0], self._async)
            self._settle()

    def watermark_behind(self, watermark_ms: int | None) -> int | None:
        """How far event time has come behind the head, where the head may hold it back: after a
        restore, the input brings the rest again."""
        return watermark_ms if self._async is None else self._nodes[0].assigned_ms

    @property
    def awaits_processing_time(self) -> bool:
        """Asked for before every element."""
        for operator in self._timed:  # noqa: SIM110 - a generator takes longer than the rest
            if operator.awaits_processing_time:
                return True
        return False

    def on_processing_time(self) -> None:
        """Raises OperatorFailed."""
        now_ms = self._now_ms()
        self._delivery.begin_moment()
        for node in self._nodes:
            node.on_processing_time(now_ms)
        self._settle()

    def broadcast(self, mark: Mark) -> None:
        """Event time of the input ends at the operators that assign their own."""
        is_time = isinstance(mark, (Watermark, WatermarkStatus))
        for exchange in self._input_time.exchanges if is_time else self._exchanges:
            exchange.broadcast(mark)

    def pass_on(self, barrier: Barrier) -> list[InFlightRecords]:
        """Sends a barrier downstream; one that overtakes returns what it has overtaken."""
        channels = sum(len(exchange.outputs) for exchange in self._exchanges)
        if channels:
            self.head_context().count(BARRIERS_SENT, channels)
        if not barrier.overtakes:
            self.broadcast(barrier)
            return []
        return [kept for exchange in self._exchanges for kept in exchange.overtake(barrier)]

    def outputs_holding(self, checkpoint_id: CheckpointId) -> list[Output]:
        """Where this checkpoint's barrier waits behind records, and could overtake them."""
        return [o for exchange in self._exchanges for o in exchange.holding(checkpoint_id)]

    def key_times_ms(self, watermark_ms: int | None) -> list[KeyTime]:
        """How far event time has come by key group, while a restore makes them unequal."""
        restored_times_ms = self.head_context().restored_times_ms
        return key_times(restored_times_ms, self._place.key_groups, watermark_ms)

    def cut(self, barrier: Barrier) -> list[OperatorCut]:
        """The synchronous part of a snapshot. Raises PrepareRefused and OperatorFailed.

        1. Functions bring their state up to date. 2. Sinks prepare: while one may refuse, no state
        has been frozen that would have to be let go. 3. State is cut.
        """
        for node in self._nodes:
            node.on_cut(barrier.checkpoint_id)
        self._settle()
        of_sinks = [node.prepare(barrier.checkpoint_id) for node in self._nodes]
        return [
            node.cut(barrier, each, keeps_state=self._keeps_state)
            for node, each in zip(self._nodes, of_sinks, strict=True)
        ]

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        for node in self._nodes:
            node.on_completed(checkpoint_id)
        self._settle()

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        for node in self._nodes:
            node.on_aborted(checkpoint_id)
        self._settle()

    def commit(self, permit: CommitPermit) -> None:
        """Raises InvariantViolated if the permit is another attempt's."""
        mine = self._place.attempt
        check(permit.attempt == mine, "sinks commit for their own attempt", permit=permit)
        for node in self._nodes:
            node.commit(permit)

    def close(self) -> None:
        if self._anchoring is not None:
            self._anchoring.close()
        for node in self._nodes:
            node.close()

    def state_bytes(self) -> int:
        contexts = [node.context for node in self._nodes]
        return sum(c.state.statistics().state_bytes + c.operator_state.nbytes for c in contexts)

    def flush(self) -> bool:
        """True if all channels downstream would take an element; sends what waited for them first.
        Raises ChannelClosed.
        """
        full = [output for output in self._outputs if not output.flush()]
        return not full

    def _on_assigned(self, assigner: ChainNode, mark: EventTimeMark) -> None:
        """Called while an operator is at work, whose batch is in work again afterwards."""
        reached = self._times[assigner.uid]
        if isinstance(mark, Watermark):
            assigner.assigned_ms = mark.timestamp_ms
            with self._delivery.moment() as origins:
                for node in reached.nodes:
                    node.on_watermark(mark.timestamp_ms, origins)
        else:
            for node in reached.nodes:
                node.on_status(mark)
        for exchange in reached.exchanges:
            exchange.broadcast(mark)

    def _follow(self, work: Callable[[], None]) -> None:
        """Does the work, and reports its outcome to the ackers. Raises OperatorFailed."""
        try:
            work()
        except OperatorFailed as failure:
            if not self._delivery.has_given_up(failure):
                raise
        else:
            self._delivery.settle()
        if self._anchoring is not None:
            self.count(self._anchoring.take_counts())

    def _settle(self) -> None:
        """No operator is at work: backends may move what they hold in memory."""
        for settle in self._settles:
            settle()


@dataclass(slots=True)
class _Time:
    """Who sees one event time of the chain: nodes in topological order, and what they send into."""

    nodes: list[ChainNode] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)


def _times_of(graph: JobGraph, nodes: list[ChainNode]) -> dict[Uid | None, _Time]:
    """{operator that assigns it: time}; None stands for the event time of the chain's input."""
    assigners = [node.uid for node in nodes if node.assigns_event_time]
    times: dict[Uid | None, _Time] = {uid: _Time() for uid in (None, *assigners)}
    for node in nodes:
        seen = graph.assigner_of(node.uid)
        times[seen].nodes.append(node)
        times[node.uid if node.assigns_event_time else seen].exchanges += node.exchanges
    return times
