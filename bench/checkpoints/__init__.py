"""The cost of a checkpoint: time, bytes, and the pause of the subtasks."""
