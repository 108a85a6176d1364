"""Supervision: drivers are started, watched and ended; requests are delivered to them."""
