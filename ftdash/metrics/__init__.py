"""Samples that runs report once a second, and signs of life of our own processes."""
