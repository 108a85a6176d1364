"""Rewinds of real queries by seed: `python -m tests.structured_rewinds --seeds 200`."""
