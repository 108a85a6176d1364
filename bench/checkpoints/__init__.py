"""What a checkpoint costs: time, bytes, and the pause of the subtasks."""
