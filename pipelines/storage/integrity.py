"""Length and digest of a snapshot's files: computed while they are written, compared when read.

Says in a sentence what is wrong with a file; where the bytes are is each store's own matter.
"""

import hashlib
import os
from collections.abc import Iterable

from blake3 import blake3

from pipelines.domain.snapshots import FileHandle

BLAKE3 = "blake3:"
"""What a digest begins with; without it, it is BLAKE2b-256, as formats 1 and 2 had it."""


class RunningDigest:
    """Digest and length of what has passed so far. `like`: by the function of another digest."""

    def __init__(self, like: str = BLAKE3) -> None:
        self._prefix = BLAKE3 if like.startswith(BLAKE3) else ""
        self._hash = blake3() if self._prefix else hashlib.blake2b(digest_size=32)
        self.length = 0

    def update(self, piece: bytes | memoryview) -> None:
        self._hash.update(piece)
        self.length += len(piece)

    def hexdigest(self) -> str:
        return self._prefix + self._hash.hexdigest()

    def handle(self, name: str) -> FileHandle:
        return FileHandle(name=name, length=self.length, digest=self.hexdigest())


def digest_of(content: bytes, like: str = BLAKE3) -> str:
    digest = RunningDigest(like)
    digest.update(content)
    return digest.hexdigest()


def handle_of(name: str, pieces: Iterable[bytes | memoryview], like: str = BLAKE3) -> FileHandle:
    digest = RunningDigest(like)
    for piece in pieces:
        digest.update(piece)
    return digest.handle(name)


def problem_of_name(directory: str, name: str) -> str | None:
    """A manifest that names anything but a file beside it was not written here."""
    if os.path.basename(name) != name or name in ("", os.curdir, os.pardir):
        return f"{name!r} is no file name; the manifest at {directory} was not written here."
    return None


def problem_of_length(where: str, length: int, file: FileHandle) -> str | None:
    if length == file.length:
        return None
    change = "truncated" if length < file.length else "extended"
    return f"{where} has {length} bytes instead of {file.length}: it was {change}."


def problem_of_content(where: str, found: FileHandle, file: FileHandle) -> str | None:
    if found.digest == file.digest:
        return None
    return f"{where} was altered: its digest does not match."
