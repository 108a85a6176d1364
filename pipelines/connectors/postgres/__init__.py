"""Tables of PostgreSQL: rows exactly once, by plain transactions or by PREPARE TRANSACTION."""
