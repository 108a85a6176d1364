"""Functions that ask other services, with many requests under way at a time."""
