"""Packages that ftdash sends to drivers and slots without installing them there.

These are the packages of authors, and ftdash's own engine.

Decides what a package may be, where an installation keeps it, and which code a process imports.
"""
