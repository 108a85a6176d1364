"""The recovery page of a pipeline: failures, recoveries, and the points to restore from."""
