"""Changelogs: streams that take rows back. Their column `row_kind` says what each row does.

`+I` adds a row, and `-D` takes back a row that is equal in all other columns. The result so far is
the rows that were added minus those that were taken back. An operator that would count a retracted
row as one more refuses a changelog when the pipeline is built.

Source: Flink's `RowKind` and its retract streams; `+U` and `-U` are read as `+I` and `-D`.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.elements import DELETE, INSERT, ROW_KIND, take_back_column
from pipelines.domain.errors import Rejected
from pipelines.operators.columns import Longs

__all__ = [
    "DELETE",
    "INSERT",
    "ROW_KIND",
    "changes",
    "has_row_kind",
    "pass_changes_on",
    "refuse_changelogs",
    "signs",
    "with_row_kind",
]


def refuse_changelogs(inputs: Sequence[bool]) -> bool:
    """Raises Rejected if an input is a changelog. Returns False: the output only adds rows, too."""
    if any(inputs):
        raise Rejected(
            f"its input is a changelog, which takes rows back ({ROW_KIND} {DELETE!r}), and it would"
            " count those as further rows. Aggregate the changelog by key first, or put"
            " as_records(uid=...) in front to read each change as a record"
        )
    return False


def pass_changes_on(inputs: Sequence[bool], schema: pa.Schema) -> bool:
    """Returns True if the output of a function of single rows is a changelog, like its input.

    Raises Rejected if that output does not have the column `row_kind`.
    """
    if any(inputs) and not has_row_kind(schema):
        raise Rejected(
            f"its input is a changelog, and its schema has no string column {ROW_KIND!r}, so rows"
            " that are taken back would look like further rows. Pass the column on, or put"
            " as_records(uid=...) in front to read each change as a record"
        )
    return any(inputs)


def has_row_kind(schema: pa.Schema) -> bool:
    return ROW_KIND in schema.names and schema.field(ROW_KIND).type == pa.string()


def with_row_kind(schema: pa.Schema, what: str) -> pa.Schema:
    """Raises Rejected, in a sentence that begins with `what`, if the column is taken."""
    if ROW_KIND in schema.names:
        raise Rejected(f"{what} has a column {ROW_KIND!r}, which the result adds; rename it.")
    return schema.append(pa.field(ROW_KIND, pa.string()))


def changes(rows: pa.RecordBatch, row_kind: str, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the rows as changes of one kind; `schema` has `row_kind` as its last column."""
    kinds = pa.array([row_kind]).take(pa.array(np.zeros(rows.num_rows, np.int64)))
    return pa.RecordBatch.from_arrays([*rows.columns, kinds], schema=schema)


def signs(batch: pa.RecordBatch) -> Longs:
    """Returns 1 for each row that is added, and -1 for each that is taken back."""
    is_back = pc.is_in(batch.column(ROW_KIND), value_set=take_back_column())
    return np.where(is_back.to_numpy(zero_copy_only=False), np.int64(-1), np.int64(1))
