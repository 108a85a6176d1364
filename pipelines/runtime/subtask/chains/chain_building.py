"""Opens the nodes of a chain with their restored state, and wires their calls.

Commits what the restored point had prepared, before anything is written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pipelines.connectors.files.quarantine import QUARANTINED, quarantine_of
from pipelines.connectors.in_process import BlackHole
from pipelines.connectors.sink import SinkContext
from pipelines.domain.elements import MIN_WATERMARK_MS
from pipelines.domain.graph import NodeKind
from pipelines.domain.ids import Uid
from pipelines.domain.ledger import counter_of_sink
from pipelines.domain.poison import Isolation
from pipelines.operators.operator import Collector, Operator, OperatorContext
from pipelines.protocol.commit import CommitLog
from pipelines.runtime.subtask.chains.chain_delivery import ChainDelivery, side_collector
from pipelines.runtime.subtask.chains.chain_node import ChainNode, ChainPlace, OpenSink
from pipelines.runtime.subtask.chains.exchange import Exchange
from pipelines.runtime.subtask.operator_failure import located
from pipelines.runtime.subtask.snapshots.in_flight import by_key_group
from pipelines.runtime.subtask.snapshots.restoring import RestoredOperator
from pipelines.runtime.subtask.sources.split_screen import Quarantine
from pipelines.state.backend import BackendFactory
from pipelines.state.row_digest import RowCount, RowDigest
from pipelines.stream import Pipeline


@dataclass(frozen=True, slots=True)
class Quarantines:
    """A subtask's orders about poison records; `home` holds the quarantines of all sources."""

    home: str = ""
    pipeline: str = ""
    isolation: Isolation = field(default_factory=Isolation)


class ChainBuilder:
    """Builds one chain, once. `exchanges` are those that leave each node."""

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
        """In topological order. Raises OperatorFailed, Rejected or CorruptSnapshot."""
        for uid in reversed(
            self._place.vertex.nodes
        ):  # followers first, so that calls can be wired
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
        """The event time that a node saw at the cut, or that it had assigned."""
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
        """None: no record goes there, and the restored point had prepared none."""
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
        # A black hole's rows cannot be read again, so a digest of them would prove nothing.
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
