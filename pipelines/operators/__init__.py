"""What a subtask does with a batch: filter, aggregate, join, window."""
