"""The time of a recovery after a failure, and the memory and time of a restore."""
