"""The checkpoints page of a pipeline: history, trends and summary, and the history as a file."""
