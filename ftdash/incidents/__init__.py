"""Incidents: what is wrong with a pipeline and why, from its first sign until it is over."""
