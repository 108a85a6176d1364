"""The chain of one subtask: its nodes call each other directly; only the ends touch channels.

Owns operators, sinks, their state and the sinks' commit logs; decides nothing about checkpoints.
Only the subtask's thread uses it.

Before it writes anything, it commits the output that the restored point had prepared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from pipelines.channels.channel import Output
from pipelines.connectors.files.quarantine import QUARANTINED, quarantine_of
from pipelines.connectors.in_process import BlackHole
from pipelines.connectors.sink import SinkContext
from pipelines.connectors.source import Offsets
from pipelines.domain.elements import Barrier, Mark, Watermark, WatermarkStatus
from pipelines.domain.errors import check
from pipelines.domain.event_time import MIN_WATERMARK_MS
from pipelines.domain.events import HotKeys, MetricSample
from pipelines.domain.graph import JobGraph, NodeKind
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.ledger import counter_of_sink
from pipelines.domain.origins import Origins, Part
from pipelines.domain.poison import Isolation
from pipelines.operators.operator import (
    AsyncOperator,
    Collector,
    Operator,
    OperatorContext,
    knows_processing_time,
)
from pipelines.protocol.acking import Ids
from pipelines.protocol.commit import CommitLog, CommitPermit
from pipelines.protocol.watermarks import EventTimeMark
from pipelines.runtime.subtask.acking.anchoring import Anchoring
from pipelines.runtime.subtask.chains.chain_delivery import ChainDelivery, side_collector
from pipelines.runtime.subtask.chains.chain_node import ChainNode, ChainPlace, OpenSink, OperatorCut
from pipelines.runtime.subtask.chains.exchange import Exchange
from pipelines.runtime.subtask.operator_failure import OperatorFailed, located
from pipelines.runtime.subtask.snapshots.in_flight import (
    InFlightRecords,
    KeyTime,
    by_key_group,
    key_times,
)
from pipelines.runtime.subtask.snapshots.restoring import RestoredOperator
from pipelines.runtime.subtask.sources.split_screen import Quarantine
from pipelines.state.backend import BackendFactory
from pipelines.state.row_digest import RowCount, RowDigest
from pipelines.stream import Pipeline


@dataclass(frozen=True, slots=True)
class Quarantines:
    """A subtask's instructions for poison records. The quarantines of all sources are in `home`."""

    home: str = ""
    pipeline: str = ""
    isolation: Isolation = field(default_factory=Isolation)


class ChainBuilder:
    """Builds one chain, once. `exchanges`: the outgoing exchanges of each node."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        place: ChainPlace,
        backends: BackendFactory,
        exchanges: Mapping[Uid, list[Exchange]],
        restored: Mapping[Uid, RestoredOperator],
        now_ms: Callable[[], int],
        delivery: ChainDelivery,
        quarantines: Quarantines,
        digests_output: bool,
    ) -> None:
        self._pipeline = pipeline
        self._place = place
        self._backends = backends
        self._exchanges = exchanges
        self._restored = restored
        self._now_ms = now_ms
        self._delivery = delivery
        self._quarantines = quarantines
        self._digests_output = digests_output
        self._nodes: dict[Uid, ChainNode] = {}
        head = restored[place.vertex.uid]
        self._watermark_ms = MIN_WATERMARK_MS if head.watermark_ms is None else head.watermark_ms
        self._times_ms = by_key_group(head.key_times_ms, place.max_parallelism)

    def build(self) -> list[ChainNode]:
        """Returns the nodes in topological order. Raises OperatorFailed, Rejected or
        CorruptSnapshot."""
        for uid in reversed(
            self._place.vertex.nodes
        ):  # followers first, because each node needs its followers
            self._nodes[uid] = self._node(uid)
        return [self._nodes[uid] for uid in self._place.vertex.nodes]

    def _node(self, uid: Uid) -> ChainNode:
        context = self._context(uid)
        node = ChainNode(uid, context, exchanges=self._exchanges_of(uid))
        node.assigned_ms = self._restored[uid].assigned_ms
        match self._pipeline.graph.node(uid).kind:
            case NodeKind.OPERATOR:
                node.operator = self._open_operator(uid, context)
            case NodeKind.SINK:
                node.sink = self._open_sink(uid, context)
            case NodeKind.SOURCE:
                node.quarantine = self._open_quarantine(uid, context)
        return node

    def _context(self, uid: Uid) -> OperatorContext:
        place = self._place
        sides = self._pipeline.graph.side_outputs_of(uid)
        return OperatorContext(
            uid=uid,
            subtask=place.subtask,
            parallelism=place.parallelism,
            max_parallelism=place.max_parallelism,
            state=self._backends(place.key_groups, place.max_parallelism),
            collect=self._collector(uid, None, self._exchanges_of(uid)),
            collect_side=side_collector({side: self._collector(uid, side, []) for side in sides}),
            counters=dict(self._restored[uid].counters),
            now_ms=self._now_ms,
            restored_watermark_ms=self._restored_time(uid),
            restored_times_ms=self._times_ms,
            lineage=self._delivery.lineage,
        )

    def _restored_time(self, uid: Uid) -> int:
        """Returns the event time that a node saw at the cut, or that it had assigned."""
        graph = self._pipeline.graph
        assigner = uid if graph.node(uid).assigns_event_time else graph.assigner_of(uid)
        if assigner is None:
            return self._watermark_ms
        assigned_ms = self._restored[assigner].assigned_ms
        return MIN_WATERMARK_MS if assigned_ms is None else assigned_ms

    def _collector(self, uid: Uid, side: str | None, exchanges: list[Exchange]) -> Collector:
        followers = self._pipeline.graph.successors_in_chain(uid, side)
        return self._delivery.collector([self._nodes[f] for f in followers], exchanges)

    def _exchanges_of(self, uid: Uid) -> list[Exchange]:
        return self._exchanges.get(uid, [])

    def _open_operator(self, uid: Uid, context: OperatorContext) -> Operator:
        operator = self._pipeline.operators[uid]()
        try:
            operator.open(context, self._pipeline.input_schemas(uid))
        except Exception as error:
            raise located(uid, (), error) from error
        restored = self._restored[uid]
        for stored in restored.states:
            if stored.database is None or not context.state.adopt(stored.database):
                context.state.restore(stored.name, stored.rows, stored.rows_expected)
        for name, batches in restored.operator_states:
            context.operator_state.restore(name, batches)
        try:
            operator.on_restored()
        except Exception as error:
            raise located(uid, (), error) from error
        return operator

    def _open_quarantine(self, uid: Uid, context: OperatorContext) -> Quarantine | None:
        """Returns None if no record goes there and the restored point had prepared none."""
        restored, wanted = self._restored[uid].quarantined, self._quarantines
        if not restored and not wanted.isolation.concerns(uid):
            return None
        sink = quarantine_of(wanted.home, uid, wanted.pipeline)
        return Quarantine(sink.open(self._sink_context(uid), QUARANTINED), restored, context)

    def _sink_context(self, uid: Uid) -> SinkContext:
        place = self._place
        return SinkContext(place.run_id, place.attempt, uid, place.subtask, place.parallelism)

    def _open_sink(self, uid: Uid, context: OperatorContext) -> OpenSink:
        (schema,) = self._pipeline.input_schemas(uid)
        sink = self._pipeline.sinks[uid]
        # The rows of a BlackHole cannot be read again, so a digest of them would prove nothing.
        is_digested = self._digests_output and not isinstance(sink, BlackHole)
        given = RowDigest() if is_digested else RowCount()
        opened = OpenSink(
            sink.open(self._sink_context(uid), schema),
            CommitLog(self._restored[uid].prepared),
            given,
            counter_of_sink(context.counters, has_state=self._restored[uid].is_known),
        )
        context.count(opened.counter, 0)
        opened.commit_restored()
        return opened


BARRIERS_SENT = "barriers_sent"
"""A counter: one per barrier and channel that it was sent into."""


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
        """If `anchoring` is None, no acker follows the records. `keeps_state`: cuts include the
        state. `wake`: any thread calls it when a result has come."""
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
        """Returns the hot keys of those exchanges that send much to few key groups."""
        samplers = (exchange.sampler for exchange in self._exchanges)
        found = (sampler.hottest() for sampler in samplers if sampler is not None)
        return [each for each in found if each is not None]

    @property
    def bytes_out(self) -> int:
        """The bytes sent, without messages to ackers. Any thread may read it."""
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
        """All counters of the chain, `<uid>.<name>`. Any thread may read them."""
        return {
            f"{node.uid}.{name}": value
            for node in self._nodes
            for name, value in dict(node.context.counters).items()  # copied in one step
        }

    @property
    def metrics(self) -> list[MetricSample]:
        """The metrics of the authors' functions in the chain. Any thread may read them."""
        return [sample for node in self._nodes for sample in node.context.metrics.samples(node.uid)]

    def head_context(self) -> OperatorContext:
        return self._nodes[0].context

    def count(self, counts: Mapping[str, int]) -> None:
        """Adds to the counters of the head."""
        context = self._nodes[0].context
        for name, count in counts.items():
            context.count(name, count)

    def on_batch(self, port: int, batch: pa.RecordBatch, parts: Sequence[Part] = ()) -> None:
        """Gives the head a batch from an exchange; `parts`: the batches joined in it, in order.

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
        """`trees`: the tree of each row, if ackers follow the records. Raises OperatorFailed."""
        self._delivery.begin_emission(batch, origins, offsets, trees)
        self._follow(lambda: self._nodes[0].context.collect(batch))
        self._settle()

    def on_watermark(self, timestamp_ms: int) -> None:
        """Fires operators in topological order, then sends the watermark behind their output."""
        self._delivery.begin_moment()
        for node in self._input_time.nodes:
            node.on_watermark(timestamp_ms, self._delivery.origins)
        self._settle()
        self.broadcast(Watermark(timestamp_ms))

    def on_event_time(self, marks: list[EventTimeMark]) -> None:
        """Passes on event time. Only the subtask that merges inputs sees that one is idle."""
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
        """True if the head takes no input now."""
        return self._async is not None and self._async.is_full

    @property
    def awaits_results(self) -> bool:
        return self._async is not None and self._async.awaits_results

    def on_results(self) -> None:
        """Lets the results that have come leave the head. Raises OperatorFailed."""
        if self._async is not None:
            self._delivery.give_out(self._nodes[0], self._async)
            self._settle()

    def watermark_behind(self, watermark_ms: int | None) -> int | None:
        """Returns the watermark behind the head, which may hold event time back. After a restore,
        the input brings the rest again."""
        return watermark_ms if self._async is None else self._nodes[0].assigned_ms

    @property
    def awaits_processing_time(self) -> bool:
        """True if an operator waits for processing time. The subtask asks before every element."""
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
        """Sends a mark downstream. Operators that assign event time stop that of the input."""
        is_time = isinstance(mark, (Watermark, WatermarkStatus))
        for exchange in self._input_time.exchanges if is_time else self._exchanges:
            exchange.broadcast(mark)

    def pass_on(self, barrier: Barrier) -> list[InFlightRecords]:
        """Sends a barrier downstream; returns the records that it has overtaken, if any."""
        channels = sum(len(exchange.outputs) for exchange in self._exchanges)
        if channels:
            self.head_context().count(BARRIERS_SENT, channels)
        if not barrier.overtakes:
            self.broadcast(barrier)
            return []
        return [kept for exchange in self._exchanges for kept in exchange.overtake(barrier)]

    def outputs_holding(self, checkpoint_id: CheckpointId) -> list[Output]:
        """Returns the outputs where this checkpoint's barrier waits and could overtake records."""
        return [o for exchange in self._exchanges for o in exchange.holding(checkpoint_id)]

    def key_times_ms(self, watermark_ms: int | None) -> list[KeyTime]:
        """Returns event time by key group, as long as a restore makes key groups differ."""
        restored_times_ms = self.head_context().restored_times_ms
        return key_times(restored_times_ms, self._place.key_groups, watermark_ms)

    def cut(self, barrier: Barrier) -> list[OperatorCut]:
        """The synchronous part of a snapshot. Raises PrepareRefused and OperatorFailed.

        1. Functions bring their state up to date. 2. Sinks prepare: if one refuses, no state has
        been frozen yet that would have to be released. 3. State is cut.
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
        """Raises InvariantViolated if the permit belongs to another attempt."""
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
        """Sends waiting elements; returns True if all channels then accept more.

        Raises ChannelClosed.
        """
        full = [output for output in self._outputs if not output.flush()]
        return not full

    def _on_assigned(self, assigner: ChainNode, mark: EventTimeMark) -> None:
        """Passes on event time that `assigner` assigns, in the middle of a batch; the batch is in
        work again afterwards."""
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
        """Call while no operator is at work: backends may move their data in memory."""
        for settle in self._settles:
            settle()


@dataclass(slots=True)
class _Time:
    """The nodes that see one event time of the chain, in topological order, and their exchanges."""

    nodes: list[ChainNode] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)


def _times_of(graph: JobGraph, nodes: list[ChainNode]) -> dict[Uid | None, _Time]:
    """Returns {operator that assigns it: time}; None is the key of the event time of the input."""
    assigners = [node.uid for node in nodes if node.assigns_event_time]
    times: dict[Uid | None, _Time] = {uid: _Time() for uid in (None, *assigners)}
    for node in nodes:
        seen = graph.assigner_of(node.uid)
        times[seen].nodes.append(node)
        times[node.uid if node.assigns_event_time else seen].exchanges += node.exchanges
    return times
