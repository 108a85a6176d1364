"""Passes every batch on: unites streams, or gives a side output a uid of its own."""

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.operator import Operator


class PassOn(Operator):
    """Source: Flink's union, which needs no operator; here its inputs end in one gate."""

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        first, *others = inputs
        for position, other in enumerate(others, start=2):
            if not other.equals(first):
                raise Rejected(
                    f"Its first input has the columns ({_columns(first)}) and its input {position}"
                    f" ({_columns(other)}); make them equal, for example with map_batches."
                )
        return first

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        if self.context.lineage is not None:
            self.context.lineage.descend_from(np.arange(batch.num_rows))
        self.context.collect(batch)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
