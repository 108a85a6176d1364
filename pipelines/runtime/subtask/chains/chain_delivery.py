"""Passes batches from node to node inside a chain, and out of it into the exchanges.

Counts the records. Knows which batch is in work and the parts that it was joined of, so that a
failure can name its record. Where every record is followed, it also knows from which rows of that
batch each emitted row descends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from pipelines.connectors.source import Offsets
from pipelines.domain.elements import Origins, Part, RecordOrigin, gathered
from pipelines.domain.errors import Retryable
from pipelines.domain.graph import JobGraph, NodeKind
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
"""Takes a batch, and the row in work that each of its rows descends from; None: all of them."""

_NO_ROW = -1
"""Stands for the rows of a batch that is not anchored, and of all that is made of it."""


class ChainDelivery(WorkInHand):
    """Used by the subtask's thread only; others may read the counts."""

    def __init__(self, graph: JobGraph, anchoring: Anchoring | None = None) -> None:
        """`anchoring` None: no acker follows the records."""
        self._graph = graph
        self._anchoring = anchoring
        self.lineage = None if anchoring is None else Lineage()
        self._rows: Numbers | None = None  # from which the batch at an operator descends
        self.records_in = 0
        self.records_out = 0
        self.origins: Origins = ()  # of the batch in work, or of the newest one
        self._parts: Sequence[Part] = ()  # of the batch in work
        self._entered: pa.RecordBatch | None = None  # that batch as it came in
        self._offsets: Offsets | None = None  # of its records, where they have gaps

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
        """A source emits. `offsets` None: they follow each other, or are not known. `trees` has one
        for each row; None: no acker follows them."""
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
        """From now on, output was not made of the newest batch: it comes because its time has."""
        if self.origins:
            self.origins = tuple([origin.as_moment() for origin in self.origins])

    @contextmanager
    def moment(self) -> Iterator[Origins]:
        """While event time goes on in the middle of a batch: gives the origins of that batch as a
        moment. Afterwards the batch is in work as before."""
        before = self.origins, self._rows
        self.begin_moment()
        yield self.origins
        self.origins, self._rows = before

    def settle(self) -> None:
        """All output of the batch in work was delivered."""
        self._rows = self._entered = None
        if self._anchoring is not None:
            self._anchoring.settle()

    def has_given_up(self, failure: OperatorFailed) -> bool:
        """True if the batch in work has failed and the attempt goes on.

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
            raise self._located(node, batch, error) from error

    def give_out(self, node: ChainNode, operator: AsyncOperator) -> None:
        """Results that have come leave the operator. Raises OperatorFailed."""
        try:
            operator.on_results()
        except Exception as error:
            raise self._located(node, self._entered, error) from error

    def collector(self, followers: Iterable[ChainNode], exchanges: list[Exchange]) -> Collector:
        """Takes what a node, or one of its side outputs, emits."""
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
        """The descent of the batch that is being emitted; `count` is its number of rows."""
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
        """The row of `batch` at which the node itself failed; -1: unknown, or it is another node.

        The search calls the author's function again. So it is left out where the world is at fault
        and the row would name no record.
        """
        if node.operator is None or is_located(error):
            return -1
        names_records = self._reads_sources(node) or len(self._parts) != 1
        if is_of_the_world(error) and not names_records:
            return -1
        row = node.operator.failing_row(batch)
        # What fails in an asynchronous operator may be a request of an earlier batch.
        is_the_only_one = batch.num_rows == 1 and not isinstance(node.operator, AsyncOperator)
        return 0 if row < 0 and is_the_only_one else row

    def _origins_at(
        self, node: ChainNode, batch: pa.RecordBatch, error: Exception, row: int
    ) -> Origins:
        """One record, if the operator knows the row and sees rows as the source gave them. Else the
        part of a joined batch, if it knows the row."""
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
        """The origins of the part that a row belongs to, its number there, and the part's rows."""
        for origins, rows in self._parts:
            if row < rows:
                return origins, row, rows
            row -= rows
        return self.origins, -1, -1

    def _record_of(self, origin: RecordOrigin, row: int, rows: int) -> Origins:
        """The record of one of `rows` rows of that origin; the whole origin if an exchange has
        split its rows."""
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
