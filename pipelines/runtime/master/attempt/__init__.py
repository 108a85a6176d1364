"""The attempts of a run: their deployment, fencing, failures and recovery."""
