"""Queries that read the rows of samples."""
