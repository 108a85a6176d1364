"""Running totals per key: each batch emits new results for the keys that it touched.

Takes records, or the partial results of a `LocalAggregate` before the exchange. State: one row per
key, kept for ever. Source: Flink SQL's `GroupAggFunction`, with one update per key and batch.
"""

from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.operators.aggregation import Aggregation
from pipelines.operators.grouping import group
from pipelines.operators.operator import Operator, OperatorContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.operators.accumulators import Values


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
