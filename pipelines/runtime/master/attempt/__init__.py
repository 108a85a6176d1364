"""The attempts of a run: deployed, fenced, failed, recovered."""
