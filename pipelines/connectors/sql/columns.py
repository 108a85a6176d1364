"""Which tables and columns results need in SQL, and whether a column that is there takes them."""

from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from pipelines.domain.errors import Rejected

NAME_BYTES_MAX = 63
"""Of PostgreSQL, for the longest name that is made of a table's."""

SqlType = sa.Boolean | sa.BigInteger | sa.Double[float] | sa.Text | sa.Date | sa.DateTime


def check_name(name: str) -> None:
    """PostgreSQL would cut a longer name off, and then two tables might be one."""
    if not name or "\0" in name or len(f"{name}_superseded".encode()) > NAME_BYTES_MAX:
        limit = NAME_BYTES_MAX - len("_superseded")
        raise Rejected(f"The table name {name!r} is not one of 1 to {limit} bytes without NUL.")


def takes(found: sa.types.TypeEngine[Any], wanted: sa.types.TypeEngine[Any]) -> bool:
    """Whether every value of `wanted` that fits the column's size can be stored as it is."""
    if isinstance(found, postgresql.TIMESTAMP):  # SQLite keeps no zone
        return isinstance(wanted, sa.DateTime) and found.timezone == wanted.timezone
    families: dict[type, tuple[type, ...]] = {
        sa.Boolean: (sa.Boolean,),
        sa.BigInteger: (sa.Integer,),
        sa.Double: (sa.Double,),
        sa.Text: (sa.String,),
        sa.Date: (sa.Date,),
        sa.DateTime: (sa.DateTime,),
    }
    return isinstance(found, families[type(wanted)])


def sql_type(field: pa.Field) -> SqlType:
    is_type = pa.types
    if is_type.is_boolean(field.type):
        return sa.Boolean()
    if is_type.is_integer(field.type):
        return sa.BigInteger()
    if is_type.is_floating(field.type):
        return sa.Double()
    if is_type.is_string(field.type) or is_type.is_large_string(field.type):
        return sa.Text()
    if is_type.is_date32(field.type):
        return sa.Date()
    if is_type.is_timestamp(field.type) and field.type.unit != "ns":
        return sa.DateTime(timezone=field.type.tz is not None)
    raise Rejected(f"Column {field.name} of type {field.type} has no counterpart in SQL.")
