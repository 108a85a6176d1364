"""Where the RocksDB backend keeps state: a database per state, behind a bounded working set."""
