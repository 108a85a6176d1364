"""Directories of a local disk whose names stay when the power goes.

Syncing a file keeps its content; its name is kept by syncing the directory that holds it.
"""

import os
from pathlib import Path


def make_directory(directory: Path) -> None:
    """With all above it; of each new one its parent is synced, or it would go with the power."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for each in missing:
        make_durable(each.parent)


def make_durable(directory: Path) -> None:
    """The names in it are found there after the loss of the machine."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
