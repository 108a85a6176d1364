"""Runs as pages, programs and alerts see them."""
