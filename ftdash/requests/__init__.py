"""Requests: which ones a pipeline allows, how they are stored, and the command a driver gets."""
