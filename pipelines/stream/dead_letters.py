"""Separates the dead letters of a source from its records, right behind the source.

Reads and writes no state. `connectors.dead_letters` says what a dead letter is.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from pipelines.connectors.dead_letters import (
    COLUMN,
    DEAD_LETTERS,
    LETTER,
    KeepsDeadLetters,
    letters_of,
)
from pipelines.connectors.source import AnySource
from pipelines.domain.errors import Rejected
from pipelines.domain.graph import JobGraph
from pipelines.domain.ids import Uid
from pipelines.operators.operator import Operator, SideOutput


class SeparateDeadLetters(Operator):
    """Guarantee: each record of the source leaves by exactly one of the two outputs."""

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        (schema,) = inputs
        return schema.remove(schema.get_field_index(COLUMN))

    def side_outputs(self, inputs: list[pa.Schema]) -> dict[str, SideOutput]:
        return {DEAD_LETTERS: SideOutput(LETTER, None)}

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        packed = batch.column(COLUMN)
        rows = batch.drop_columns([COLUMN])
        if packed.null_count == len(packed):
            self.context.collect(rows)
            return
        is_record = packed.is_null()
        letters = letters_of(packed.drop_null().to_pylist())
        self.context.count(DEAD_LETTERS, letters.num_rows)
        self._descend(packed.is_valid())
        self.context.collect_side(DEAD_LETTERS, letters)
        if packed.null_count:
            self._descend(is_record)
            self.context.collect(rows.filter(is_record))

    def _descend(self, is_parent: pa.BooleanArray) -> None:
        if self.context.lineage is not None:
            self.context.lineage.descend_from(
                np.flatnonzero(is_parent.to_numpy(zero_copy_only=False))
            )


def keeps_dead_letters(source: AnySource) -> bool:
    return isinstance(source, KeepsDeadLetters) and source.dead_letters


def separator_of(source: Uid) -> Uid:
    """The operator behind that source."""
    return Uid(f"{source}-decoded")


def check_letters_are_read(sources: Mapping[Uid, AnySource], graph: JobGraph) -> None:
    """Raises Rejected: letters that nothing reads would be lost without a word."""
    for uid, source in sources.items():
        if not keeps_dead_letters(source):
            continue
        if DEAD_LETTERS not in graph.side_outputs_of(separator_of(uid)):
            raise Rejected(
                f"The source {uid!r} keeps dead letters, and nothing reads them. Read its stream's"
                f" side_output({DEAD_LETTERS!r}, uid=...), or leave dead_letters=True out."
            )
