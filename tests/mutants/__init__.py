"""Breaks the code on purpose, one change at a time: the test of the guarantee must fail."""
