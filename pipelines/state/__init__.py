"""Keyed state: columns per state, cut without copying."""
