"""What you can learn about a recovery point, and do with it, without a running pipeline."""
