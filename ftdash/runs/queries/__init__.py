"""The readers of the rows of pipelines, runs and requests."""
