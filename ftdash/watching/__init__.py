"""Structured Streaming queries that people already run: watched, never touched."""
