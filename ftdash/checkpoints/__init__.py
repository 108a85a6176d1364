"""Rows of checkpoints and savepoints, with the time of each subtask in them."""
