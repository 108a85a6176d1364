"""The lab: the checkpointing modes side by side."""
