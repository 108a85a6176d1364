"""Turns rows of a snapshot into rows of the state as it is declared now.

Rows are checked against the declaration before they become state. The module makes the changes that
`protocol.compatibility` accepts: it fills in added columns and casts widened ones, a whole batch at
a time. A batch that already fits passes unchanged.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.protocol.compatibility import DeclaredColumns, changes_of
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    NAMESPACE_COLUMN,
    BatchListDescriptor,
    TableDescriptor,
)
from pipelines.state.hashing import KeyGroups
from pipelines.state.in_memory import batch_list, table

Descriptor = TableDescriptor | BatchListDescriptor


def evolved(descriptor: Descriptor, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns `batch` with exactly the columns of the state's snapshots.

    Raises:
        Rejected: a column is missing, has another type or no longer exists; the message names the
        column, the state and both types.
    """
    schema = snapshot_schema(descriptor)
    if batch.schema.equals(schema):
        return batch
    changes_of(declared_columns(descriptor), type_names(batch.schema))
    columns = [_column(descriptor, field, batch) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def declared_columns(descriptor: Descriptor) -> DeclaredColumns:
    """Returns the columns to compare with a manifest; key and engine columns are fixed."""
    kind, keys = "batches", list[str]()
    if isinstance(descriptor, TableDescriptor):
        kind, keys = "table", descriptor.key.names
    engine = (KEY_GROUP_COLUMN, NAMESPACE_COLUMN)
    return DeclaredColumns(
        descriptor.name,
        kind,
        type_names(snapshot_schema(descriptor)),
        frozenset(descriptor.defaults),
        frozenset((*keys, *descriptor.key_group_by, *engine)),
    )


def snapshot_schema(descriptor: Descriptor) -> pa.Schema:
    """The columns of a state's rows in any snapshot, in order."""
    if isinstance(descriptor, TableDescriptor):
        return table.snapshot_schema(descriptor)
    return batch_list.snapshot_schema(descriptor)


def type_names(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _column(descriptor: Descriptor, field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
    if field.name in batch.schema.names:
        return batch.column(field.name).cast(field.type)
    return _filled(descriptor.defaults[field.name], field, batch.num_rows)


def _filled(default: object, field: pa.Field, rows: int) -> pa.Array:
    """Fills a column. The integer default of a time column is a time's underlying integer."""
    is_raw_time = pa.types.is_temporal(field.type) and isinstance(default, int)
    if not is_raw_time:
        return pa.repeat(pa.scalar(default, field.type), rows)
    raw = pa.int64() if field.type.bit_width == 64 else pa.int32()
    return pa.repeat(pa.scalar(default, raw), rows).view(field.type)


def own_rows(
    state: str,
    schema: pa.Schema,
    batch: pa.RecordBatch,
    own_groups: KeyGroupRange,
    key_groups_of: Callable[[pa.RecordBatch], KeyGroups],
) -> pa.RecordBatch:
    """Returns the rows of own key groups, with exactly the columns of `schema`.

    Raises:
        Rejected: a column is missing, has another type or holds invalid values; or the rows were
        divided into other key groups than this run uses.
    """
    arrays = [_restored_column(state, field, batch) for field in schema]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    groups = rows.column(KEY_GROUP_COLUMN).to_numpy(zero_copy_only=False)
    is_own = (groups >= own_groups.first) & (groups <= own_groups.last)
    if not is_own.all():  # only at another parallelism, because a filter copies
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


def _restored_column(state: str, field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
    if batch.schema.names.count(field.name) != 1:
        raise Rejected(f"The snapshot of the state {state!r} has no column {field.name!r}.")
    column = batch.column(field.name)
    if column.type != field.type:
        raise Rejected(
            f"The column {field.name!r} of the state {state!r} is {column.type} in the snapshot "
            f"and {field.type} in the operator."
        )
    return column
