"""Tables of PostgreSQL: rows exactly once, by one plain transaction or by PREPARE TRANSACTION."""
