"""The event log: all events in one list, and as a file."""
