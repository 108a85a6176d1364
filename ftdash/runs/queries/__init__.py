"""Queries that read the rows of pipelines, runs and requests."""
