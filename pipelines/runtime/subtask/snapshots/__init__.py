"""How a subtask stores its part of a checkpoint, and restores it."""
