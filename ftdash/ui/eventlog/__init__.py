"""The event log: everything that happened, in one list, and as a file."""
