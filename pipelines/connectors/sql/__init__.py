"""Tables of SQLite and PostgreSQL, a row per key, written again without harm."""
