"""Hosts an operator that needs one more column than authors see, and removes it from the output.

Windows over a whole stream are windows of one key, which every record has. Windows of processing
time are windows of event time, with the moment at which the operator took each record.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipelines.domain.ids import CheckpointId
from pipelines.domain.origins import Firing
from pipelines.operators.operator import Operator, OperatorContext, SideOutput

ONE_KEY = "__all"
"""The key of all records of a stream that has no key."""


class Around(Operator):
    """Removes the column from all output. The input has it, unless a subclass adds it."""

    def __init__(self, inner: Operator, column: str) -> None:
        self._inner = inner
        self._column = column

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return _without(self._inner.output_schema(self._given(inputs)), self._column)

    def emits_changes(self, inputs: list[bool]) -> bool:
        return self._inner.emits_changes(inputs)

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        sides = self._inner.side_outputs(self._given(inputs))
        return {
            name: replace(side, schema=_without(side.schema, self._column))
            for name, side in sides.items()
        }

    def open(self, context: OperatorContext, inputs: list[pa.Schema]) -> None:
        super().open(context, inputs)
        self._inner.open(self._inner_context(context), self._given(inputs))

    def on_restored(self) -> None:
        self._inner.on_restored()

    def on_cut(self, checkpoint_id: CheckpointId) -> None:
        self._inner.on_cut(checkpoint_id)

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        self._inner.on_checkpoint_completed(checkpoint_id)

    def on_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._inner.on_checkpoint_aborted(checkpoint_id)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._inner.on_batch(port, batch)

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return self._inner.failing_row(batch)

    def on_watermark(self, timestamp_ms: int) -> None:
        self._inner.on_watermark(timestamp_ms)

    def firing(self) -> Firing | None:
        return self._inner.firing()

    @property
    def awaits_processing_time(self) -> bool:
        return self._inner.awaits_processing_time

    def on_processing_time(self, now_ms: int) -> None:
        self._inner.on_processing_time(now_ms)

    def on_end(self) -> None:
        self._inner.on_end()

    def _given(self, inputs: list[pa.Schema]) -> list[pa.Schema]:
        """Returns the schemas that the inner operator gets."""
        return inputs

    def _inner_context(self, context: OperatorContext) -> OperatorContext:
        return replace(
            context,
            collect=lambda batch: context.collect(_dropped(batch, self._column)),
            collect_side=lambda name, batch: context.collect_side(
                name, _dropped(batch, self._column)
            ),
        )


class WithOneKey(Operator):
    """Gives all records one key, so that one subtask gets them all."""

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return inputs[0].append(pa.field(ONE_KEY, pa.int8()))

    def emits_changes(self, inputs: list[bool]) -> bool:
        return any(inputs)

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        if self.context.lineage is not None:
            self.context.lineage.descend_from(np.arange(batch.num_rows))
        key = pa.array(np.zeros(batch.num_rows, np.int8))
        self.context.collect(batch.append_column(pa.field(ONE_KEY, pa.int8()), key))


def _without(schema: pa.Schema, column: str) -> pa.Schema:
    index = schema.get_field_index(column)
    return schema if index < 0 else schema.remove(index)


def _dropped(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    return batch.drop_columns([column]) if column in batch.schema.names else batch
