"""Rows of an input that an operator keeps whole, as durable state."""

import pyarrow as pa

from pipelines.state.backend import BatchListDescriptor


def row_list(
    name: str, schema: pa.Schema, keys: tuple[str, ...], time_column: str | None = None
) -> BatchListDescriptor:
    """A column that the input has gained since is null in older rows."""
    gained = [column for column in schema.names if column not in (*keys, time_column)]
    return BatchListDescriptor(
        name=name, schema=schema, key_group_by=keys, defaults=dict.fromkeys(gained)
    )
