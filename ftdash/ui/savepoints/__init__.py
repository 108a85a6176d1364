"""Savepoints: all of a pipeline's, one, what it holds, and two compared."""
