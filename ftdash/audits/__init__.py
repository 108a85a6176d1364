"""Audits of a run's output: asked for, and carried out by a process of their own."""
