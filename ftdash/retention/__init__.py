"""Retention: rows, journals, logs and marks that are older than they are kept are deleted."""
