"""The engine: barriers, snapshots and recovery for streaming pipelines on Spark."""

__version__ = "0.3.0.dev0"
"""The version of the engine and the control plane. It is written nowhere else;
`docs/how-to/develop.md` describes how to release a version."""
