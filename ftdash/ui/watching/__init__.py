"""Pages of Structured Streaming queries that are watched."""
