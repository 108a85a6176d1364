"""Files that appear whole or not at all, and whose names survive a loss of power.

The digest and the length of a file's bytes are computed as they pass. Syncing a file keeps its
content; syncing the directory that holds it keeps its name.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

FOR_OWNER, FOR_ALL = 0o600, 0o644
"""Permissions: who may read a file. Its owner may write it."""


def replace_atomically(path: Path, content: bytes, mode: int = FOR_OWNER) -> None:
    """On return `path` holds `content`; a reader sees the old file or the new one."""
    temporary = _write_beside(path, content, mode)
    temporary.replace(path)


def create_if_absent(path: Path, content: bytes, mode: int = FOR_OWNER) -> bool:
    """Returns False if `path` already exists, which is then left as it is."""
    temporary = _write_beside(path, content, mode)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _write_beside(path: Path, content: bytes, mode: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return Path(name)


BLAKE3 = "blake3:"
"""The prefix of a digest; a digest without it is BLAKE2b-256, from earlier versions."""

READ_BLOCK_BYTES = 1 << 20


class RunningDigest:
    """Digest and length of the bytes so far. `like` selects the function of that digest."""

    def __init__(self, like: str = BLAKE3) -> None:
        self._prefix = BLAKE3 if like.startswith(BLAKE3) else ""
        self._hash = blake3() if self._prefix else hashlib.blake2b(digest_size=32)
        self.length = 0

    def update(self, piece: bytes | memoryview) -> None:
        self._hash.update(piece)
        self.length += len(piece)

    def hexdigest(self) -> str:
        return self._prefix + self._hash.hexdigest()


def blocks_of(path: Path) -> Iterator[bytes]:
    """Yields a file's content in blocks. Raises OSError."""
    with open(path, "rb") as file:
        while block := file.read(READ_BLOCK_BYTES):
            yield block


def entries_of(directory: Path) -> list[Path]:
    """Returns the directory's entries; none if it does not exist. Raises OSError.

    `Path.glob` would report an unreadable directory as empty.
    """
    try:
        return [directory / name for name in os.listdir(directory)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def make_directory(directory: Path) -> None:
    """Makes it and its parents, and syncs the parent of each new one, which keeps the names."""
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
