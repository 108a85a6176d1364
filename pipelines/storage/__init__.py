"""Stores snapshots, and decides what makes a checkpoint complete."""
