"""The page of a pipeline's log lines."""
