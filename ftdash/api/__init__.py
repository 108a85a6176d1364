"""Doors for programs: Flink's REST interface, and our own for what Flink's has no word for.

No rows of its own: reads ask the queries that the pages ask, actions the services.
"""
