"""The ends of the pipe: sources that rewind, sinks that commit."""
