"""The lineage page: which run started from which point."""
