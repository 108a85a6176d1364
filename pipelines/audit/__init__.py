"""Reads a run's output again and reports up to which checkpoint it matches the ledger."""
