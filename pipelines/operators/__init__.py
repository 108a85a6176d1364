"""The operators of a subtask, which filter, aggregate, join and window batches."""
