"""How a source subtask reads: splits, positions, quarantine, and a reader for each mode."""
