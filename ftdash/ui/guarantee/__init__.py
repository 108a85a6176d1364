"""The guarantee page of a pipeline: what it promises, its ledger, and its audits."""
