"""Nexmark: events of an auction house, and the queries of the stream benchmark over them."""

__version__ = "1.0"
