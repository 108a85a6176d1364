"""Facts about recovery points across the runs of a pipeline."""
