"""Features that SQLite and PostgreSQL share and SQLAlchemy supports separately for each."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

Insert = sqlite.Insert | postgresql.Insert


def insert_into(dialect: str, table: sa.Table) -> Insert:
    """An insert with ON CONFLICT, which standard SQL lacks."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
