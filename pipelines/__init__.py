"""The engine: barriers, snapshots and recovery for streaming pipelines on Spark."""
