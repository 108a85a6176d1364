"""Retention: deletes rows, journals, logs and marks that have reached their age limit."""
