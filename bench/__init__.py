"""Benchmarks: each a program that answers one question, prints its figures and names its bars."""
