"""Directories of a local disk whose names survive a loss of power.

Syncing a file keeps its content; syncing the directory that holds it keeps its name.
"""

import os
from pathlib import Path


def make_directory(directory: Path) -> None:
    """Makes it and all above it; syncs the parent of each new one, which keeps the names."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for each in missing:
        make_durable(each.parent)


def make_durable(directory: Path) -> None:
    """Makes the names in it survive the loss of the machine."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
