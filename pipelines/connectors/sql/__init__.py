"""Tables of SQLite and PostgreSQL: a row per key, which may be written again without harm."""
