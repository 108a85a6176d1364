"""Interfaces for programs: Flink's REST interface, and our own for what Flink's does not offer.

They have no rows of their own: reads use the queries of the pages, actions the services.
"""
