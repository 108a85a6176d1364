"""Aggregates each batch before an exchange, so that few partial results travel, not all records.

Stateless: it emits the partial results of a batch at once, so barriers need nothing from it. Where
keys hardly repeat, grouping is wasted work; then it passes each record on as a partial result of
its own, and now and then groups a batch again to see if that has changed.

Source: Flink's two-phase (local-global) aggregation; without its buffer across batches.
"""

import numpy as np
import pyarrow as pa

from pipelines.operators.aggregation import Aggregation
from pipelines.operators.grouping import group
from pipelines.operators.operator import Operator

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
