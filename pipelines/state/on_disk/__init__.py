"""Storage of the RocksDB backend: a database per state, behind a bounded working set."""
