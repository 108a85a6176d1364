"""Supervision: starts, watches and ends drivers, and delivers requests to them."""
