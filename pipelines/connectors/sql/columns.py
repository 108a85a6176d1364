"""The tables and columns that results need in SQL, and checks that existing columns fit them.

Features that SQLite and PostgreSQL share and SQLAlchemy supports separately for each.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from pipelines.domain.errors import Rejected

NAME_BYTES_MAX = 63
"""PostgreSQL's limit for the name of a column, and for the longest name made from a table's."""

SqlType = sa.Boolean | sa.BigInteger | sa.Double[float] | sa.Text | sa.Date | sa.DateTime


def check_name(name: str) -> None:
    """PostgreSQL would truncate a longer name, and two tables might become one."""
    if not name or "\0" in name or len(f"{name}_superseded".encode()) > NAME_BYTES_MAX:
        limit = NAME_BYTES_MAX - len("_superseded")
        raise Rejected(f"The table name {name!r} is not one of 1 to {limit} bytes without NUL.")


def check_column_names(names: Sequence[str]) -> None:
    """PostgreSQL would truncate a longer name, and the next start would look for the whole one."""
    for name in names:
        if not name or "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
            raise Rejected(
                f"The column name {name[:NAME_BYTES_MAX]!r} is not one of 1 to {NAME_BYTES_MAX}"
                " bytes without NUL; rename it in the results."
            )
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise Rejected(
            f"Two columns of the table would be named {repeated}; rename it in the results."
        )


def takes(found: sa.types.TypeEngine[Any], wanted: sa.types.TypeEngine[Any]) -> bool:
    """True if `found` stores every `wanted` value that fits its size, without a change."""
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


Insert = sqlite.Insert | postgresql.Insert


def insert_into(dialect: str, table: sa.Table) -> Insert:
    """An insert with ON CONFLICT, which standard SQL lacks."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
