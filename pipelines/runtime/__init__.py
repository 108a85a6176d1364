"""Carries out what the machines of `protocol` decide."""
