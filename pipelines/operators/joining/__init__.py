"""Joins of two streams: within windows or sessions, within an interval, or without bounds."""
