"""Checks rows of a snapshot against what the pipeline declares, before they become state."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.state.backend import KEY_GROUP_COLUMN
from pipelines.state.hashing import KeyGroups


def own_rows(
    state: str,
    schema: pa.Schema,
    batch: pa.RecordBatch,
    own_groups: KeyGroupRange,
    key_groups_of: Callable[[pa.RecordBatch], KeyGroups],
) -> pa.RecordBatch:
    """The rows of own key groups, with exactly the columns of `schema`.

    Raises:
        Rejected: a column is missing, has another type or holds invalid values; or the rows were
        divided into other key groups than this run uses.
    """
    arrays = [_column(state, field, batch) for field in schema]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    groups = rows.column(KEY_GROUP_COLUMN).to_numpy(zero_copy_only=False)
    is_own = (groups >= own_groups.first) & (groups <= own_groups.last)
    if not is_own.all():  # at another parallelism; a filter copies
        rows, groups = rows.filter(pa.array(is_own)), groups[is_own]
    if not np.array_equal(groups, key_groups_of(rows)):
        raise Rejected(
            f"State '{state}': the snapshot was cut into other key groups; "
            "restore it with the maximum parallelism that it was taken with."
        )
    return rows


def check_no_nulls(state: str, batch: pa.RecordBatch, columns: list[str]) -> None:
    for column in columns:
        if batch.column(column).null_count:
            raise Rejected(f"State '{state}': the column '{column}' of the snapshot holds nulls.")


def _column(state: str, field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
    if batch.schema.names.count(field.name) != 1:
        raise Rejected(f"The snapshot of the state {state!r} lacks the column {field.name!r}.")
    column = batch.column(field.name)
    if column.type != field.type:
        raise Rejected(
            f"The column {field.name!r} of the state {state!r} is {column.type} in the snapshot "
            f"and {field.type} in the operator."
        )
    return column
