"""Running totals per key: each batch emits new results for the keys that it touched.

Takes records, or the partial results of a `LocalAggregate` before the exchange. State: one row per
key, kept for ever. Source: Flink SQL's `GroupAggFunction`, with one update per key and batch.

Aggregates each batch before an exchange, so that few partial results travel, not all records.

Stateless: it emits the partial results of a batch at once, so barriers need nothing from it. Where
keys hardly repeat, grouping is wasted work; then it passes each record on as a partial result of
its own, and now and then groups a batch again to see if that has changed.

Source: Flink's two-phase (local-global) aggregation; without its buffer across batches.
"""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.operators.aggregating.aggregation import Aggregation
from pipelines.operators.columns import group
from pipelines.operators.operator import Operator, OperatorContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.operators.aggregating.aggregates import Values


class KeyedAggregate(Operator):
    def __init__(self, aggregation: Aggregation, *, merges_partials: bool = False) -> None:
        self._aggregation = aggregation
        self._accumulators_of: Callable[[pa.RecordBatch], list[Values]] = (
            aggregation.lifted if merges_partials else aggregation.lift
        )

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return self._aggregation.output_schema

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        keys = tuple(self._aggregation.key_names)
        self._totals = context.state.table(self._aggregation.descriptor("totals", keys))

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        groups = group(batch, self._aggregation.key_names)
        reduced = self._aggregation.reduce(self._accumulators_of(batch), groups)
        totals = self._aggregation.fold(self._totals, groups.keys, reduced)
        self.context.collect(self._aggregation.results(groups.keys, totals))


WORTHWHILE_RATIO = 0.5
"""Grouping pays if it leaves at most this share of the rows."""

BATCHES_BETWEEN_PROBES = 31


class LocalAggregate(Operator):
    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation
        self._ungrouped_batches_left = 0

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return self._aggregation.partial_schema

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        if self._ungrouped_batches_left:
            self._ungrouped_batches_left -= 1
            if self.context.lineage is not None:
                self.context.lineage.descend_from(np.arange(batch.num_rows))
            self.context.collect(self._one_per_record(batch))
        else:
            self.context.collect(self._one_per_key(batch))

    def _one_per_record(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = batch.select(self._aggregation.key_names)
        return self._aggregation.partials(keys, self._aggregation.lift(batch))

    def _one_per_key(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        groups = group(batch, self._aggregation.key_names)
        if groups.count > batch.num_rows * WORTHWHILE_RATIO:
            self._ungrouped_batches_left = BATCHES_BETWEEN_PROBES
        reduced = self._aggregation.reduce(self._aggregation.lift(batch), groups)
        return self._aggregation.partials(groups.keys, reduced)
