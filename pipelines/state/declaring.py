"""Checks declared states; refuses anything that a backend cannot keep before the first record."""

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.state.arrow_types import check_default, check_key_type, check_value_type
from pipelines.state.backend import (
    KEY_GROUP_COLUMN,
    NAMESPACE_COLUMN,
    BatchListDescriptor,
    TableDescriptor,
)


def check_table(descriptor: TableDescriptor) -> None:
    for field in descriptor.key:
        check_key_type(descriptor.name, field)
    for field in descriptor.value:
        check_value_type(descriptor.name, field)
        if field.name not in descriptor.defaults:
            raise Rejected(f"State '{descriptor.name}': '{field.name}' has no default.")
        check_default(descriptor.name, field, descriptor.defaults[field.name])
    if not len(descriptor.key):
        raise Rejected(f"State '{descriptor.name}' declares no key column.")
    _check_columns(descriptor.name, [*descriptor.key, *descriptor.value])
    _check_grouping(descriptor.name, descriptor.key_group_by, descriptor.key)


def check_batch_list(descriptor: BatchListDescriptor) -> None:
    _check_columns(descriptor.name, list(descriptor.schema))
    _check_grouping(descriptor.name, descriptor.key_group_by, descriptor.schema)


def _check_columns(state: str, fields: list[pa.Field]) -> None:
    names = [field.name for field in fields]
    for name in names:
        if name in (KEY_GROUP_COLUMN, NAMESPACE_COLUMN):
            raise Rejected(f"State '{state}': the column name '{name}' is reserved.")
        if names.count(name) > 1:
            raise Rejected(f"State '{state}': the column '{name}' is declared twice.")


def _check_grouping(state: str, key_group_by: tuple[str, ...], schema: pa.Schema) -> None:
    if not key_group_by:
        raise Rejected(f"State '{state}' names no column that decides the key group.")
    for name in key_group_by:
        if name not in schema.names:
            raise Rejected(f"State '{state}': there is no column '{name}' to decide key groups.")
        check_key_type(state, schema.field(name))
