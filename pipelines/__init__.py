"""The engine: barriers, snapshots and recovery for streaming pipelines on Spark."""

__version__ = "0.3.0.dev0"
"""Of the engine and the control plane. Nothing else states it; `docs/how-to/develop.md` says how a
version is released."""
