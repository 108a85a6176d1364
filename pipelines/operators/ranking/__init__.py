"""Operators that keep some rows of each key: the first, the last, the best ones."""
