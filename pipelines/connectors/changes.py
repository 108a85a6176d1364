"""A changelog for a sink that keeps one row per key: what becomes of each key.

Of all changes of a key the last one counts: the row that it adds is there, or, if it takes a row
back, no row is. That is right if one subtask writes all changes of a key, in the order in which
they were made; `stream.environment` sees to it.

Source: Flink's upsert sinks, which read `-U` as nothing and `-D` as a deletion by key.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.domain.elements import ROW_KIND, take_back_column

_POSITION = "__position"


@dataclass(frozen=True, slots=True)
class LastChanges:
    """`kept`: the newest row of each key that has one. `gone`: the keys that have none."""

    kept: pa.Table
    gone: pa.Table


def without_kind(schema: pa.Schema) -> pa.Schema:
    """The columns of the rows that a changelog adds and takes back."""
    return schema.remove(schema.get_field_index(ROW_KIND))


def last_changes(batches: Sequence[pa.RecordBatch], keys: Sequence[str]) -> LastChanges:
    """`batches`, at least one, have the column of the row kind."""
    changes = pa.Table.from_batches(batches)
    positions = pa.array(range(changes.num_rows), pa.int64())
    numbered = changes.select(list(keys)).append_column(_POSITION, positions)
    last = numbered.group_by(list(keys), use_threads=False).aggregate([(_POSITION, "max")])
    newest = changes.take(last.column(f"{_POSITION}_max").combine_chunks().sort())
    is_gone = pc.is_in(newest.column(ROW_KIND), value_set=take_back_column())
    return LastChanges(
        kept=newest.filter(pc.invert(is_gone)).drop_columns([ROW_KIND]),
        gone=newest.filter(is_gone).select(list(keys)),
    )
