"""The checkpoints of a run: how they are triggered, completed, kept and deleted."""
