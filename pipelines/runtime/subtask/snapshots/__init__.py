"""What a subtask stores for a checkpoint, and what it takes from one."""
