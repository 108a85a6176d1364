"""Reads the output of a run again, and says up to which checkpoint it is what the ledger says."""
