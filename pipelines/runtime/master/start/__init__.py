"""The start of a run, and of each of its attempts."""
