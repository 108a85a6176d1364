"""Keeps the rows for which a predicate holds; null counts as false, as in SQL."""

import re
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from pipelines.domain.errors import Rejected
from pipelines.operators.columns import field_of
from pipelines.operators.failing_row import first_failing_row
from pipelines.operators.operator import Operator

MaskFunction = Callable[[pa.RecordBatch], pa.BooleanArray]
Predicate: TypeAlias = pc.Expression | MaskFunction
"""An Arrow expression such as `field("x") > 3`, or a function from a batch to a boolean mask."""

_MISSING = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ", re.DOTALL)


class Filter(Operator):
    def __init__(self, predicate: Predicate) -> None:
        is_expression = isinstance(predicate, pc.Expression)
        self._mask: MaskFunction = _evaluator(predicate) if is_expression else predicate

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        """Tries the predicate on an empty batch, which shows every error of names and types."""
        empty = pa.RecordBatch.from_pylist([], schema=inputs[0])
        try:
            mask_type = self._mask(empty).type
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise _refusal(error, inputs[0]) from error
        if mask_type != pa.bool_():
            raise Rejected(f"The filter gives {mask_type} values where it must give bool.")
        return inputs[0]

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        mask = self._mask(batch)
        kept = batch.filter(mask)
        if kept.num_rows:
            if self.context.lineage is not None:
                self.context.lineage.descend_from(np.flatnonzero(mask.fill_null(False)))
            self.context.collect(kept)

    def failing_row(self, batch: pa.RecordBatch) -> int:
        return first_failing_row(self._mask, batch)


def _evaluator(expression: pc.Expression) -> MaskFunction:
    """Evaluates on the calling thread; the slot's cores belong to its subtasks."""

    def evaluate(batch: pa.RecordBatch) -> pa.BooleanArray:
        rows = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
        project = acero.ProjectNodeOptions([expression], ["mask"])
        plan = acero.Declaration.from_sequence(
            [acero.Declaration("table_source", rows), acero.Declaration("project", project)]
        )
        return plan.to_table(use_threads=False).column("mask").combine_chunks()

    return evaluate


def _refusal(error: Exception, schema: pa.Schema) -> Rejected:
    missing = _MISSING.search(str(error))
    if missing is not None:
        try:
            field_of(schema, missing[1])
        except Rejected as named:
            return named
    reason = str(error).splitlines()[0].strip("'\"")
    return Rejected(f"The filter does not fit its input: {reason}.")
