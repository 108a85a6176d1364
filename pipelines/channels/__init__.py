"""FIFO channels between subtasks, bounded by credit."""
