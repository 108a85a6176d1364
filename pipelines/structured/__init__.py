"""Structured Streaming queries of other people: read, judged, saved and rewound without Spark.

It starts no query and changes none: what it writes goes into a place of its own.
"""
