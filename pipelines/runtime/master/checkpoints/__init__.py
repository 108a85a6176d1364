"""Checkpoints of a run: triggered, injected, completed, kept and deleted."""
