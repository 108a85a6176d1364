"""What can be known of a recovery point, and done about it, without a running pipeline."""
