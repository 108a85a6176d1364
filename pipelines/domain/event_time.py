"""The ends of event time. Pages show them too, so this module does not load Arrow."""

MAX_WATERMARK_MS = 2**62
"""Event time has ended: every window may fire."""

MIN_WATERMARK_MS = -(2**62)
"""Nothing is known about event time yet."""
