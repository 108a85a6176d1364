"""How a source subtask reads: its splits, positions, quarantine, and a reader for each mode."""
