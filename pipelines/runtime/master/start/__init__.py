"""Where a run and each of its attempts begin."""
