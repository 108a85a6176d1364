"""Passes batches from node to node inside a chain, and out of it into the exchanges.

Counts the records, and knows which batch is in work, so that a failure can name its record. Where
every record is followed, it knows which rows of that batch each emitted row descends from.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pyarrow as pa

from pipelines.connectors.source import Offsets
from pipelines.domain.errors import Retryable
from pipelines.domain.graph import JobGraph, NodeKind
from pipelines.domain.origin import RecordOrigin
from pipelines.operators.lineage import Lineage
from pipelines.operators.operator import Collector, SideCollector
from pipelines.protocol.trees import Ids, Numbers
from pipelines.runtime.subtask.anchoring import Anchoring
from pipelines.runtime.subtask.chain_node import ChainNode
from pipelines.runtime.subtask.exchange import Exchange
from pipelines.runtime.subtask.operator_failure import OperatorFailed, is_located, located

Target = Callable[[pa.RecordBatch, Numbers | None], None]
"""Takes a batch, and the row in work that each of its rows descends from; None: all of them."""

_NO_ROW = -1
"""Of a batch that is not anchored, nor whatever is made of it."""


class ChainDelivery:
    """Used by the subtask's thread only; others may read the counts."""

    def __init__(self, graph: JobGraph, anchoring: Anchoring | None = None) -> None:
        """`anchoring` None: nobody follows the records."""
        self._graph = graph
        self._anchoring = anchoring
        self.lineage = None if anchoring is None else Lineage()
        self._rows: Numbers | None = None  # that the batch an operator is at descends from
        self.records_in = 0
        self.records_out = 0
        self.origin: RecordOrigin | None = None  # of the batch in work, or of the newest one
        self._offsets: Offsets | None = None  # of its records, where they have gaps

    def begin(self, batch: pa.RecordBatch, origin: RecordOrigin | None) -> pa.RecordBatch:
        """A batch from an exchange enters the chain. Returns it as operators see it."""
        self._count_in(batch, origin, None)
        if self._anchoring is None:
            return batch
        self._rows = np.arange(batch.num_rows)
        return self._anchoring.begin(batch)

    def begin_emission(
        self,
        batch: pa.RecordBatch,
        origin: RecordOrigin | None,
        offsets: Offsets | None,
        trees: Ids | None,
    ) -> None:
        """A source emits; `offsets` None: they follow each other, or are not known. `trees` has
        one for each row; None: nobody follows them."""
        self._count_in(batch, origin, offsets)
        if self._anchoring is None or self.lineage is None or trees is None:
            return
        self._anchoring.begin_trees(trees)
        self._rows = np.arange(batch.num_rows)
        self.lineage.descend_from(self._rows)

    def begin_moment(self) -> None:
        """What is emitted from now on was not made of the newest batch: its time has come."""
        if self.origin is not None:
            self.origin = self.origin.as_moment()

    def settle(self) -> None:
        """All that comes of the batch in work was delivered."""
        self._rows = None
        if self._anchoring is not None:
            self._anchoring.settle()

    def has_given_up(self, failure: OperatorFailed) -> bool:
        """Whether the batch in work has failed and the attempt goes on.

        Only an operator may fail records, and only for a reason that may pass: a sink that fails
        may have lost what it took before.
        """
        if self._anchoring is None or not isinstance(failure.error, Retryable):
            return False
        if self._graph.node(failure.operator).kind is not NodeKind.OPERATOR:
            return False
        self._rows = None
        self._anchoring.fail()
        return True

    def deliver(self, node: ChainNode, port: int, batch: pa.RecordBatch) -> None:
        """Raises OperatorFailed."""
        try:
            node.take(port, batch)
        except Exception as error:
            origin = self._origin_at(node, batch, error)
            is_of_record = node.operator is not None and origin is not None and not origin.is_moment
            raise located(node.uid, origin, error, is_of_record=is_of_record) from error

    def collector(self, followers: Iterable[ChainNode], exchanges: list[Exchange]) -> Collector:
        """What a node, or one of its side outputs, emits into."""
        targets = [
            *(self._receiver(node) for node in followers),
            *(self._sender(exchange) for exchange in exchanges),
        ]

        def collect(batch: pa.RecordBatch) -> None:
            rows = self._descent(batch.num_rows)
            if batch.num_rows == 0:
                return
            self.records_out += batch.num_rows
            for target in targets:
                target(batch, rows)

        return collect

    def _count_in(
        self, batch: pa.RecordBatch, origin: RecordOrigin | None, offsets: Offsets | None
    ) -> None:
        self.records_in += batch.num_rows
        self.origin = origin
        self._offsets = offsets

    def _descent(self, count: int) -> Numbers | None:
        """Of the batch that is being emitted, and has so many rows."""
        parents = None if self.lineage is None else self.lineage.take()
        rows = self._rows
        if rows is not None and len(rows) and rows[0] == _NO_ROW:
            return np.full(count, _NO_ROW)
        return None if parents is None or rows is None else rows[parents]

    def _sender(self, exchange: Exchange) -> Target:
        anchoring = self._anchoring
        if anchoring is None or not exchange.is_anchored:
            return lambda batch, rows: exchange.send(batch, self.origin)
        return lambda batch, rows: exchange.send(
            anchoring.marked(batch, rows), self.origin, anchoring.sealed
        )

    def _receiver(self, node: ChainNode) -> Target:
        is_anchored = self._graph.node(node.uid).inputs[0].is_anchored

        def receive(batch: pa.RecordBatch, rows: Numbers | None) -> None:
            known = rows if is_anchored else np.full(batch.num_rows, _NO_ROW)
            self._rows, before = known, self._rows
            self.deliver(node, 0, batch)
            self._rows = before

        return receive

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
