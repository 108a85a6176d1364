"""Base of all events."""

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all events; the JSON field `type` carries the class name."""
