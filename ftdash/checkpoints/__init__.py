"""Checkpoints and savepoints as rows, and how long each subtask took in them."""
