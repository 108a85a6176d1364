"""Aggregates: accumulators, aggregate functions, and running totals by key."""
