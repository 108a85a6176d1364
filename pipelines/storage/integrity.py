"""Length and digest of a snapshot's files: computed during writing, compared during reading.

Describes in a sentence what is wrong with a file; each store knows where the bytes are.
"""

import os
from collections.abc import Iterable

from pipelines.disk.digests import BLAKE3, RunningDigest
from pipelines.domain.snapshots import FileHandle


def digest_of(content: bytes, like: str = BLAKE3) -> str:
    digest = RunningDigest(like)
    digest.update(content)
    return digest.hexdigest()


def handle_of(name: str, pieces: Iterable[bytes | memoryview], like: str = BLAKE3) -> FileHandle:
    digest = RunningDigest(like)
    for piece in pieces:
        digest.update(piece)
    return handle_from(name, digest)


def handle_from(name: str, digest: RunningDigest) -> FileHandle:
    """The handle of a file, once all of its bytes have passed."""
    return FileHandle(name=name, length=digest.length, digest=digest.hexdigest())


def problem_of_name(directory: str, name: str) -> str | None:
    """Refuses any name but that of a file next to the manifest; our manifests have no others."""
    if os.path.basename(name) != name or name in ("", os.curdir, os.pardir) or "\0" in name:
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
