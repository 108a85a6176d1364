"""Queries that read the rows of checkpoints, savepoints, ledgers and audits."""
