"""What SQLite and PostgreSQL both have, and SQLAlchemy makes of each by itself."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

Insert = sqlite.Insert | postgresql.Insert


def insert_into(dialect: str, table: sa.Table) -> Insert:
    """With ON CONFLICT, which standard SQL has not."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
