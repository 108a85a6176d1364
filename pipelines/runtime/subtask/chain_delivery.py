"""Passes batches from node to node inside a chain, and out of it into the exchanges.

Counts the records, and knows which batch is in work, so that a failure can name its record.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from pipelines.connectors.source import Offsets
from pipelines.domain.graph import JobGraph, NodeKind
from pipelines.domain.origin import RecordOrigin
from pipelines.operators.operator import Collector, SideCollector
from pipelines.runtime.subtask.chain_node import ChainNode
from pipelines.runtime.subtask.exchange import Exchange
from pipelines.runtime.subtask.operator_failure import is_located, located


class ChainDelivery:
    """Used by the subtask's thread only; others may read the counts."""

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self.records_in = 0
        self.records_out = 0
        self.origin: RecordOrigin | None = None  # of the batch in work, or of the newest one
        self._offsets: Offsets | None = None  # of its records, where they have gaps

    def begin(
        self, batch: pa.RecordBatch, origin: RecordOrigin | None, offsets: Offsets | None = None
    ) -> None:
        """A batch enters the chain; `offsets` None: they follow each other, or are not known."""
        self.records_in += batch.num_rows
        self.origin = origin
        self._offsets = offsets

    def deliver(self, node: ChainNode, port: int, batch: pa.RecordBatch) -> None:
        """Raises OperatorFailed."""
        try:
            node.take(port, batch)
        except Exception as error:
            raise located(node.uid, self._origin_at(node, batch, error), error) from error

    def collector(self, followers: Iterable[ChainNode], exchanges: list[Exchange]) -> Collector:
        """What a node, or one of its side outputs, emits into."""
        targets = [
            *(self._receiver(node) for node in followers),
            *(self._sender(exchange) for exchange in exchanges),
        ]

        def collect(batch: pa.RecordBatch) -> None:
            if batch.num_rows == 0:
                return
            self.records_out += batch.num_rows
            for target in targets:
                target(batch)

        return collect

    def _sender(self, exchange: Exchange) -> Collector:
        return lambda batch: exchange.send(batch, self.origin)

    def _receiver(self, node: ChainNode) -> Collector:
        return lambda batch: self.deliver(node, 0, batch)

    def _origin_at(
        self, node: ChainNode, batch: pa.RecordBatch, error: Exception
    ) -> RecordOrigin | None:
        """One record, if the operator knows the row and sees the rows as the source gave them."""
        origin = self.origin
        if origin is None or node.operator is None or is_located(error):
            return origin
        upstreams = [self._graph.node(c.upstream) for c in self._graph.node(node.uid).inputs]
        if any(upstream.kind is not NodeKind.SOURCE for upstream in upstreams):
            return origin
        offsets = self._offsets
        if batch.num_rows != (origin.records if offsets is None else len(offsets)):
            return origin  # a part of it, behind an exchange
        row = node.operator.failing_row(batch)
        if row < 0:
            return origin
        return origin.at_row(row) if offsets is None else origin.at_offset(int(offsets[row]))


def side_collector(by_name: Mapping[str, Collector]) -> SideCollector:
    """What nobody reads is lost."""

    def collect_side(side: str, batch: pa.RecordBatch) -> None:
        if side in by_name:
            by_name[side](batch)

    return collect_side
