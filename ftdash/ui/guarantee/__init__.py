"""The guarantee page of a pipeline: its promise, its ledger, and its audits."""
