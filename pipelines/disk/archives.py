"""Zip archives that others made: which errors their bytes cause, and a bound on what they hold."""

import struct
import zipfile
import zlib

BROKEN_ARCHIVE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(OSError, ValueError, KeyError, RuntimeError),
)
"""The errors of `zipfile` for an archive that is damaged, encrypted or lacks a file."""


def read_file(archive: zipfile.ZipFile, name: str, bytes_max: int) -> bytes:
    """Unpacks one file. Raises one of BROKEN_ARCHIVE, also for a file that is larger."""
    with archive.open(name) as opened:
        content = opened.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError(f"{name} has more than {bytes_max:,} bytes")
    return content
