"""Nexmark: events of an auction house, and the queries that benchmarks of streams ask of them."""

__version__ = "1.0"
