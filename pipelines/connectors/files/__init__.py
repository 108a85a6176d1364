"""Directories of files: sources that read them, and the sink that makes them visible once."""
