"""Upgrades: a pipeline continues with other code, or falls back to the code before."""
