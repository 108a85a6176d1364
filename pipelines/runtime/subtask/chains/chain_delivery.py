"""Passes batches from node to node inside a chain, and out of it into the exchanges.

Counts the records. Knows the batch in work and the parts that it was joined from, so that a failure
can name its record. If ackers follow the records, it also knows from which rows of that batch each
emitted row descends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from pipelines.connectors.source import Offsets
from pipelines.domain.errors import Retryable
from pipelines.domain.graph import JobGraph, NodeKind
from pipelines.domain.origins import Origins, Part, RecordOrigin, gathered
from pipelines.operators.operator import (
    AsyncOperator,
    Collector,
    Lineage,
    SideCollector,
    WorkInHand,
)
from pipelines.protocol.acking import Ids, Numbers
from pipelines.runtime.subtask.acking.anchoring import Anchoring
from pipelines.runtime.subtask.chains.chain_node import ChainNode
from pipelines.runtime.subtask.chains.exchange import Exchange
from pipelines.runtime.subtask.operator_failure import (
    OperatorFailed,
    is_located,
    is_of_the_world,
    located,
)

Target = Callable[[pa.RecordBatch, Numbers | None], None]
"""Takes a batch and, for each of its rows, the row in work from which it descends. None instead of
these rows means that every row descends from all rows in work."""

_NO_ROW = -1
"""The row number for batches that are not anchored, and for everything made from them."""


class ChainDelivery(WorkInHand):
    """Only the subtask's thread uses it; other threads may read the counts."""

    def __init__(self, graph: JobGraph, anchoring: Anchoring | None = None) -> None:
        """If `anchoring` is None, no acker follows the records."""
        self._graph = graph
        self._anchoring = anchoring
        self.lineage = None if anchoring is None else Lineage()
        self._rows: Numbers | None = None  # the rows in work that the current batch descends from
        self.records_in = 0
        self.records_out = 0
        self.origins: Origins = ()  # of the batch in work, or of the newest one
        self._parts: Sequence[Part] = ()  # of the batch in work
        self._entered: pa.RecordBatch | None = None  # that batch as it came in
        self._offsets: Offsets | None = None  # of its records, if these have gaps

    def begin(self, batch: pa.RecordBatch, parts: Sequence[Part]) -> pa.RecordBatch:
        """A batch from an exchange enters the chain. Returns it as operators see it."""
        self._count_in(batch, parts, None)
        if self._anchoring is None:
            return batch
        self._rows = np.arange(batch.num_rows)
        self._entered = self._anchoring.begin(batch)
        return self._entered

    def begin_emission(
        self,
        batch: pa.RecordBatch,
        origins: Origins,
        offsets: Offsets | None,
        trees: Ids | None,
    ) -> None:
        """A source emits a batch. `offsets` is None if they have no gaps or are not known. `trees`
        has one tree for each row; it is None if no acker follows them."""
        self._count_in(batch, ((origins, batch.num_rows),), offsets)
        if self._anchoring is None or self.lineage is None or trees is None:
            return
        self._anchoring.begin_trees(trees)
        self._rows = np.arange(batch.num_rows)
        self.lineage.descend_from(self._rows)

    def parts(self, batch: pa.RecordBatch) -> Sequence[Part]:
        return self._parts or super().parts(batch)

    def resume(self, rows: pa.RecordBatch, origins: Origins) -> None:
        self._entered, self._parts, self._offsets = rows, ((origins, rows.num_rows),), None
        self.origins = origins

    def begin_moment(self) -> None:
        """From now on, output comes because a time was reached, and not from the newest batch."""
        if self.origins:
            self.origins = tuple([origin.as_moment() for origin in self.origins])

    @contextmanager
    def moment(self) -> Iterator[Origins]:
        """Wrap an advance of event time in the middle of a batch in this context. It yields the
        origins of that batch as a moment. Afterwards the batch is in work as before."""
        before = self.origins, self._rows
        self.begin_moment()
        yield self.origins
        self.origins, self._rows = before

    def settle(self) -> None:
        """Ends work on the batch: all of its output was delivered."""
        self._rows = self._entered = None
        if self._anchoring is not None:
            self._anchoring.settle()

    def has_given_up(self, failure: OperatorFailed) -> bool:
        """Returns True if only the batch in work fails and the attempt continues.

        Only an operator may fail records, and only for a reason that may pass: a sink that fails
        may have lost records that it took before.
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
            raise self._located(node, batch, error) from error

    def give_out(self, node: ChainNode, operator: AsyncOperator) -> None:
        """Lets the results that have come leave the operator. Raises OperatorFailed."""
        try:
            operator.on_results()
        except Exception as error:
            raise self._located(node, self._entered, error) from error

    def collector(self, followers: Iterable[ChainNode], exchanges: list[Exchange]) -> Collector:
        """Returns the collector of a node, or of one of its side outputs."""
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
        self, batch: pa.RecordBatch, parts: Sequence[Part], offsets: Offsets | None
    ) -> None:
        self.records_in += batch.num_rows
        self._entered, self._parts, self._offsets = batch, parts, offsets
        self.origins = parts[0][0] if len(parts) == 1 else gathered(each for each, _ in parts)

    def _descent(self, count: int) -> Numbers | None:
        """Returns the descent of the batch being emitted; `count` is its number of rows."""
        parents = None if self.lineage is None else self.lineage.take()
        rows = self._rows
        if rows is not None and len(rows) and rows[0] == _NO_ROW:
            return np.full(count, _NO_ROW)
        return None if parents is None or rows is None else rows[parents]

    def _sender(self, exchange: Exchange) -> Target:
        anchoring = self._anchoring
        if anchoring is None or not exchange.is_anchored:
            return lambda batch, rows: exchange.send(batch, self.origins)
        return lambda batch, rows: exchange.send(
            anchoring.marked(batch, rows), self.origins, anchoring.sealed
        )

    def _receiver(self, node: ChainNode) -> Target:
        is_anchored = self._graph.node(node.uid).inputs[0].is_anchored

        def receive(batch: pa.RecordBatch, rows: Numbers | None) -> None:
            known = rows if is_anchored else np.full(batch.num_rows, _NO_ROW)
            self._rows, before = known, self._rows
            self.deliver(node, 0, batch)
            self._rows = before

        return receive

    def _located(
        self, node: ChainNode, batch: pa.RecordBatch | None, error: Exception
    ) -> Exception:
        if batch is None:
            is_of_record = _is_of_record(node, self.origins)
            return located(node.uid, self.origins, error, is_of_record=is_of_record)
        row = self._failing_row(node, batch, error)
        origins = self._origins_at(node, batch, error, row)
        return located(
            node.uid,
            origins,
            error,
            is_of_record=_is_of_record(node, origins),
            record=batch.slice(row, 1) if row >= 0 else None,
        )

    def _failing_row(self, node: ChainNode, batch: pa.RecordBatch, error: Exception) -> int:
        """Returns the row of `batch` on which the node itself failed, or -1 if it is unknown or
        another node failed.

        The search calls the author's function again. So it does not search after an outage if the
        row would name no record.
        """
        if node.operator is None or is_located(error):
            return -1
        names_records = self._reads_sources(node) or len(self._parts) != 1
        if is_of_the_world(error) and not names_records:
            return -1
        row = node.operator.failing_row(batch)
        # In an asynchronous operator, a request of an earlier batch may have failed.
        is_the_only_one = batch.num_rows == 1 and not isinstance(node.operator, AsyncOperator)
        return 0 if row < 0 and is_the_only_one else row

    def _origins_at(
        self, node: ChainNode, batch: pa.RecordBatch, error: Exception, row: int
    ) -> Origins:
        """Returns one record if the operator knows the row and sees rows as the source gave them.
        If it only knows the row, returns the part of a joined batch. Else all origins."""
        origins, operator = self.origins, node.operator
        if not origins or operator is None or batch is not self._entered or is_located(error):
            return origins
        sees_source = self._reads_sources(node)
        if not sees_source and len(self._parts) == 1:
            return origins
        if row < 0:
            return origins
        origins, row, rows = self._part_of(row)
        if not sees_source or len(origins) != 1:
            return origins
        return self._record_of(origins[0], row, rows)

    def _reads_sources(self, node: ChainNode) -> bool:
        inputs = self._graph.node(node.uid).inputs
        return all(self._graph.node(each.upstream).kind is NodeKind.SOURCE for each in inputs)

    def _part_of(self, row: int) -> tuple[Origins, int, int]:
        """Returns the origins of the part that contains the row, the row's number there, and the
        part's number of rows."""
        for origins, rows in self._parts:
            if row < rows:
                return origins, row, rows
            row -= rows
        return self.origins, -1, -1

    def _record_of(self, origin: RecordOrigin, row: int, rows: int) -> Origins:
        """Returns the record of one of `rows` rows of that origin, or the whole origin if an
        exchange has split its rows."""
        offsets = self._offsets
        if rows != (origin.records if offsets is None else len(offsets)):
            return (origin,)
        return (origin.at_row(row) if offsets is None else origin.at_offset(int(offsets[row])),)


def _is_of_record(node: ChainNode, origins: Origins) -> bool:
    has_records = bool(origins) and not any(origin.is_moment for origin in origins)
    return node.operator is not None and has_records


def side_collector(by_name: Mapping[str, Collector]) -> SideCollector:
    """Drops side output that has no reader."""

    def collect_side(side: str, batch: pa.RecordBatch) -> None:
        if side in by_name:
            by_name[side](batch)

    return collect_side
