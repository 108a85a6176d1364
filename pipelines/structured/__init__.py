"""Reads, judges, saves and rewinds other people's Structured Streaming queries without Spark.

It starts no query and changes none: everything that it writes goes into a place of its own.
"""
