"""Savepoints: all of a pipeline's, one of them, its contents, and a comparison of two."""
