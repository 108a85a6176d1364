"""The readers of the rows of checkpoints, savepoints, ledgers and audits."""
