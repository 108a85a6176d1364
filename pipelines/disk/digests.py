"""Digest and length of a file's bytes, computed while they pass."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

BLAKE3 = "blake3:"
"""The prefix of a digest; a digest without it is BLAKE2b-256, from earlier versions."""

READ_BLOCK_BYTES = 1 << 20


class RunningDigest:
    """Digest and length of the bytes so far. `like`: use the function of that digest."""

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
    """Raises OSError."""
    with open(path, "rb") as file:
        while block := file.read(READ_BLOCK_BYTES):
            yield block
