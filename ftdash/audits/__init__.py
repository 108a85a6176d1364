"""Audits of a run's output: stored on request, and carried out by a separate process."""
