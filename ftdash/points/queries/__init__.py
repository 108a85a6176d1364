"""What is known of recovery points across the runs of a pipeline."""
