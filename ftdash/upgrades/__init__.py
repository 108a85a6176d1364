"""Upgrades: a pipeline goes on with other code, or by itself back to the code before."""
