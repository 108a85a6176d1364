"""Inspects, compares, checks and deletes recovery points without a running pipeline."""
