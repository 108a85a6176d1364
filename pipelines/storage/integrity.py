"""Length and digest of a snapshot's files: computed while they are written, compared when read.

Says in a sentence what is wrong with a file; where the bytes are is each store's own matter.
"""

import hashlib
import os
from collections.abc import Iterable

from pipelines.domain.snapshots import FileHandle

DIGEST_BYTES = 32


class RunningDigest:
    """BLAKE2b-256 and length of what has passed so far."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.length = 0

    def update(self, piece: bytes | memoryview) -> None:
        self._hash.update(piece)
        self.length += len(piece)

    def handle(self, name: str) -> FileHandle:
        return FileHandle(name=name, length=self.length, digest=self._hash.hexdigest())


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def handle_of(name: str, pieces: Iterable[bytes | memoryview]) -> FileHandle:
    digest = RunningDigest()
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
