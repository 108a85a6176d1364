"""Requests: what may be asked of a pipeline, how it is stored, and the command a driver gets."""
